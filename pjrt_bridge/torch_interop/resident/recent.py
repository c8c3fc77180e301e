"""A bounded cache of programs: the one that was not used for longest goes first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

KEPT = 2048
"""Programs of one kind that are kept, at least; twice as many at most."""

_Kept = TypeVar("_Kept")


class Recent(Generic[_Kept]):
    """A table of at least the `KEPT` entries that were found or added last.

    Args:
        dropping: called before entries are dropped, for who refers to them, too.
    """

    def __init__(self, dropping: Callable[[], None] | None = None) -> None:
        self._dropping = dropping
        self._new: dict[Hashable, _Kept] = {}
        self._old: dict[Hashable, _Kept] = {}

    def find(self, key: Hashable) -> _Kept | None:
        """An entry; None where there is none."""
        found = self._new.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.add(key, found)
        return found

    def add(self, key: Hashable, entry: _Kept) -> _Kept:
        """Add an entry, unless another thread did; gives what is there."""
        if len(self._new) >= KEPT and key not in self._new:
            self._old, self._new = self._new, {}
            if self._dropping is not None:
                self._dropping()
        return self._new.setdefault(key, entry)

    def clear(self) -> None:
        """Drop all entries."""
        self._new, self._old = {}, {}

    def __iter__(self) -> Iterator[_Kept]:
        """The entries."""
        return iter({**self._old, **self._new}.values())

    def __len__(self) -> int:
        """The number of entries."""
        return len(self._new) + len(self._old.keys() - self._new)
