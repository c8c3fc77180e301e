"""VariantCache: what is compiled for the sizes and values that calls bring, bounded.

XLA's programs have fixed sizes. Calls of the same sizes share a compilation. Compiling costs more
than many runs: once several sizes have been compiled, others are computed by the host, and compiled
when they have come often enough, beside the calls that the host goes on to compute
(`background.py`). Each that is compiled so doubles how often the next one has to come, up to a
limit: sizes at random are compiled ever more rarely, and all of a few in rotation soon.
When as many are compiled as are kept, a new one takes the place of one that was not used for many
calls, and is computed by the host where there is none. Nothing waits for a compilation but calls
that need what it makes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Literal, TypeVar

LIMIT = 64
"""Variants that are kept; the one that was not used longest goes first."""

UNUSED = 1000
"""Calls for which a variant was not used that another may replace, where the host can compute."""

EAGER = 4
"""Variants that are compiled when their sizes come for the first time."""

PATIENCE = 64
"""How often sizes have to come at most before they are compiled beside the calls."""

_SEEN = 4096
"""Sizes that are not compiled, and whose calls are counted."""

_Compiled = TypeVar("_Compiled")

Begin = Callable[[Callable[[], None]], bool]
"""Begins work beside the calls; False where it cannot now."""


HostReason = Literal["new", "compiling", "full"]
"""Why the host computes a call: its sizes have not come often enough, are being compiled beside the
calls, or as many are compiled as are kept."""


class _Variant(Generic[_Compiled]):
    """A variant that is compiled once, by the first thread that needs it."""

    __slots__ = ("beside", "compiled", "compiling", "used")

    def __init__(self) -> None:
        self.compiling = threading.Lock()
        self.compiled: _Compiled | None = None
        self.beside = False
        self.used = 0


class VariantCache(Generic[_Compiled]):
    """The variants of one graph.

    Args:
        uncompiled: computes any sizes, without compiling; None where each has to be compiled.
        on_host: told of each call that the host computes and that is not `wanted`; where one was,
            the caller finds something else first.
        begin: begins compilations beside the calls; None: a call waits for them.
    """

    def __init__(
        self,
        uncompiled: _Compiled | None = None,
        on_host: Callable[[HostReason], None] | None = None,
        begin: Begin | None = None,
    ) -> None:
        self._begin = begin
        self._uncompiled = uncompiled
        self._on_host = on_host
        self._calls = 0
        self._variants: OrderedDict[Hashable, _Variant[_Compiled]] = OrderedDict()
        self._seen: OrderedDict[int, int] = OrderedDict()
        self._compilations = 0
        self._last: Hashable | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many variants are compiled."""
        return sum(variant.compiled is not None for variant in list(self._variants.values()))

    def find(
        self,
        key: Hashable,
        compile: Callable[[Hashable | None], _Compiled],
        *,
        wanted: bool = False,
        later: Callable[[], Callable[[Hashable | None], _Compiled]] | None = None,
    ) -> _Compiled:
        """The variant that runs a call.

        Args:
            key: tells calls of one variant from those of others.
            compile: makes the variant; it is told the key that was compiled before, if there was
                one. What it raises passes through, and the next call tries again.
            wanted: compile it when it comes for the first time, because it will come again.
            later: gives what compiles after the call, when its arguments may be gone; None where
                that is not possible.
        """
        why: HostReason = "new"
        beside = False
        with self._lock:
            self._calls += 1
            variant = self._variants.get(key)
            if variant is not None:
                self._variants.move_to_end(key)
                variant.used = self._calls
                if variant.compiled is not None:
                    return variant.compiled
                if variant.beside and self._uncompiled is not None:
                    why, variant = "compiling", None
            elif self._uncompiled is None or (wanted and len(self._variants) < LIMIT):
                variant = self._keep(key, _Variant())
            elif not self._has_room():
                why = "full"
            elif wanted or max(self._compilations, len(self._variants)) < EAGER:
                variant = self._keep(key, _Variant())
            elif self._came_often(key):
                beside = self._begin is not None and later is not None
                why = "compiling"
                variant = None if beside else self._keep(key, _Variant())
        if beside:
            assert later is not None
            self._compile_in_background(key, later())
        if variant is None:
            assert self._uncompiled is not None
            if self._on_host is not None and not wanted:
                self._on_host(why)
            return self._uncompiled
        # Threads that come with the same new sizes compile once; others do not wait.
        with variant.compiling:
            if variant.compiled is None:
                try:
                    made = compile(self._last)
                except BaseException:
                    with self._lock:
                        if self._variants.get(key) is variant:
                            del self._variants[key]
                    raise
                variant.compiled = made
                with self._lock:
                    self._compilations += 1
                    self._last = key
                    # Another thread may have failed to compile it, and removed it.
                    self._keep(key, variant)
            return variant.compiled

    def ready(
        self, key: Hashable, later: Callable[[], Callable[[Hashable | None], _Compiled]]
    ) -> bool:
        """Whether a variant is compiled that another can stand for; where it is not, it is begun.

        Args:
            key: see `find`.
            later: see `find`.
        """
        with self._lock:
            variant = self._variants.get(key)
            if variant is not None:
                return variant.compiled is not None
            if not self._has_room():
                return False
        if self._begin is None:
            self.find(key, later(), wanted=True)
            return True
        self._compile_in_background(key, later())
        return False

    def _compile_in_background(
        self, key: Hashable, compile: Callable[[Hashable | None], _Compiled]
    ) -> None:
        """Begin to compile a variant, unless something else is under way.

        Where that fails, the next call that needs it compiles it, and raises what that raises.
        """
        variant: _Variant[_Compiled] = _Variant()
        variant.beside = True

        def work() -> None:
            try:
                with variant.compiling:
                    variant.compiled = compile(self._last)
            except BaseException:
                pass
            else:
                with self._lock:
                    self._compilations += 1
                    self._last = key
            finally:
                variant.beside = False

        with self._lock:
            if key in self._variants:
                return
            self._keep(key, variant)
        assert self._begin is not None
        if not self._begin(work):
            with self._lock:
                self._variants.pop(key, None)
                self._seen[hash(key)] = self._enough() - 1

    def _keep(self, key: Hashable, variant: _Variant[_Compiled]) -> _Variant[_Compiled]:
        variant.used = self._calls
        self._variants[key] = variant
        if len(self._variants) > LIMIT:
            self._variants.popitem(last=False)
        return variant

    def _has_room(self) -> bool:
        """Whether a variant may be added, and another go for it."""
        if len(self._variants) < LIMIT:
            return True
        oldest = next(iter(self._variants.values()))
        return self._calls - oldest.used > UNUSED

    def _enough(self) -> int:
        """How often sizes have to come before they are compiled."""
        extra = max(self._compilations, len(self._variants)) - EAGER
        return min(1 << max(extra + 1, 0), PATIENCE)

    def _came_often(self, key: Hashable) -> bool:
        """Whether sizes have come often enough to be compiled; counts this call."""
        # Keys are long: their hashes are kept, and two that are equal cost a compilation.
        seen = hash(key)
        count = self._seen.pop(seen, 0) + 1
        if count >= self._enough():
            return True
        self._seen[seen] = count
        if len(self._seen) > _SEEN:
            self._seen.popitem(last=False)
        return False
