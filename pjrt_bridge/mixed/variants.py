"""VariantCache: what is compiled for the sizes and values that calls bring, bounded.

XLA's programs have fixed sizes. Calls of the same sizes share a compilation. Compiling costs more
than many runs: once several sizes have been compiled, one that comes for the first time is computed
by the host, and compiled when it comes again. Nothing waits for a compilation but calls that need
what it makes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

LIMIT = 64
"""Variants that are kept; the one that was not used longest goes first."""

EAGER = 8
"""Variants that are compiled when their sizes come for the first time."""

_Compiled = TypeVar("_Compiled")


class _Variant(Generic[_Compiled]):
    """A variant that is compiled once, by the first thread that needs it."""

    __slots__ = ("compiled", "compiling")

    def __init__(self) -> None:
        self.compiling = threading.Lock()
        self.compiled: _Compiled | None = None


class VariantCache(Generic[_Compiled]):
    """The variants of one graph.

    Args:
        uncompiled: computes any sizes, without compiling; None where each has to be compiled.
    """

    def __init__(self, uncompiled: _Compiled | None = None) -> None:
        self._uncompiled = uncompiled
        self._variants: OrderedDict[Hashable, _Variant[_Compiled]] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._compilations = 0
        self._last: Hashable | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many variants are compiled."""
        return sum(variant.compiled is not None for variant in list(self._variants.values()))

    def find(self, key: Hashable, compile: Callable[[Hashable | None], _Compiled]) -> _Compiled:
        """What runs a call.

        Args:
            key: tells calls of one variant from those of others.
            compile: makes the variant; it is told the key that was compiled before, if there was
                one. What it raises passes through, and the next call tries again.
        """
        with self._lock:
            variant = self._variants.get(key)
            if variant is not None:
                self._variants.move_to_end(key)
                if variant.compiled is not None:
                    return variant.compiled
            elif self._uncompiled is not None and self._is_new(key):
                return self._uncompiled
            else:
                variant = self._keep(key, _Variant())
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

    def _keep(self, key: Hashable, variant: _Variant[_Compiled]) -> _Variant[_Compiled]:
        self._variants[key] = variant
        if len(self._variants) > LIMIT:
            self._variants.popitem(last=False)
        return variant

    def _is_new(self, key: Hashable) -> bool:
        """Whether sizes come for the first time although many others came before."""
        if max(self._compilations, len(self._variants)) < EAGER or key in self._seen:
            self._seen.pop(key, None)
            return False
        self._seen[key] = None
        if len(self._seen) > LIMIT:
            self._seen.popitem(last=False)
        return True
