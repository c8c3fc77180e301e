"""Which sizes a call is padded to: few programs, and little work that is wasted.

A program of larger sizes serves a call where padding is allowed. Sizes that come first are compiled
as they are, unless padding them costs next to nothing. Once they change, a program is made for
round sizes above those of the call, and serves all calls that it does not waste much of. After a
few of them, calls take what serves them until what all of them wasted is worth a program; where
nothing serves, one is made that serves what came before, too, if that is cheap. Where sizes that
are not padded differ from those of all programs, one is made when they came often. So the number
of programs grows with the logarithm of the range of each size. A few sizes that come very often get
programs of their own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import ge

SizesOfCall = tuple[int, ...]

WASTE = 1.25
"""How much more work than a call's a program may do that is made for it."""
COMPILES = 1e8
"""About the work that takes as long as making a program of a few operators."""
GROWS = 1.05
"""How much more work is hardly more, in relation to a call's."""
FREELY = 2
"""Programs that are made without asking whether another could serve."""
SMALL = 64
"""Sizes up to this may be padded to more than the double, where the work hardly grows."""
OFTEN = 256
"""Calls of the same sizes after which a program of just these is made."""
OWN = 4
"""How many of these there may be."""
LITTLE = COMPILES / OFTEN
"""Work that is hardly more, whatever a call's: in as many calls as come before sizes get a program
of their own, not more than that program costs."""
UNITS = 64
"""The largest number by which sizes may have to be divisible."""
_REMEMBERED = 4096
_MISSED = 64
"""Programs that were not compiled, of which calls are counted: those that came last."""


@dataclass
class _MissingProgram:
    """A program that was not compiled.

    Attributes:
        own: its work.
        calls: those whose sizes it was for.
        work: that of the programs that served these.
        served_calls: those that it would have served, which are not larger.
        served_work: that of the programs that served these.
    """

    own: float
    calls: int = 0
    work: float = 0.0
    served_calls: int = 0
    served_work: float = 0.0


def _is_often(calls: int, extra: int) -> bool:
    """Whether so many calls are worth a program; each further one needs twice as many."""
    return calls >= 4 << extra


@dataclass
class PaddedSizes:
    """The sizes of one graph's programs.

    Args:
        work: an estimate of a call's work, from its sizes.
        positions: of the sizes that may be padded; others are part of what a program is made for.
        fits: whether a program can have these sizes: operators may divide them.
        compiles: the work that takes as long as making a program.
        changing: whether sizes are known to change: the first is padded like others.
        following: positions of sizes that follow from others.
        settle: gives sizes with these as they follow.

    Attributes:
        made: sizes of programs, in the order in which they were made.
    """

    work: Callable[[SizesOfCall], float]
    positions: Sequence[int]
    fits: Callable[[SizesOfCall], bool] = lambda _: True
    compiles: float = COMPILES
    changing: bool = False
    following: Sequence[int] = ()
    settle: Callable[[SizesOfCall], SizesOfCall] = lambda sizes: sizes
    made: list[SizesOfCall] = field(default_factory=list)
    _first: SizesOfCall | None = None
    _first_stays: bool = True
    _chosen: OrderedDict[SizesOfCall, SizesOfCall] = field(default_factory=OrderedDict)
    _wanted: OrderedDict[SizesOfCall, _MissingProgram] = field(default_factory=OrderedDict)
    _calls: OrderedDict[SizesOfCall, int] = field(default_factory=OrderedDict)
    _own: set[SizesOfCall] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def choose(self, sizes: SizesOfCall, held: SizesOfCall | None = None) -> SizesOfCall | None:
        """The sizes of the padded program that is to serve a call; None: it is not padded.

        Args:
            sizes: of the call.
            held: those that its arguments are padded to already, by the program that made them.
        """
        with self._lock:
            if held is not None and self._suits(held, sizes):
                if held not in self.made:
                    self.made.append(held)
                self._chosen[sizes] = held
                return held
            if self._first is None:
                self._first = sizes
                padded = self._rounded(sizes)
                little = _little(self.work(sizes))
                dear = padded == sizes or self.work(padded) > little
                self._first_stays = dear and not self.changing
            if sizes == self._first and self._first_stays:
                return None
            found = self._chosen.get(sizes)
            if found is not None:
                return found
            found, settled = self._find(sizes)
            if settled and found is not None:
                self._chosen[sizes] = found
                if len(self._chosen) > _REMEMBERED:
                    self._chosen.popitem(last=False)
            return found

    def deserves_own(self, sizes: SizesOfCall) -> bool:
        """Whether these sizes come so often that a program of just these is worth compiling.

        Each call of this method counts as one of a padded call of these sizes.
        """
        with self._lock:
            if sizes in self._own:
                return True
            padded = self._chosen.get(sizes)
            if padded is None or len(self._own) >= OWN:
                return False
            count = self._calls.pop(sizes, 0) + 1
            self._calls[sizes] = count
            if len(self._calls) > _REMEMBERED:
                self._calls.popitem(last=False)
            if count < OFTEN or padded == sizes:
                return False
            if sizes != self._first and self.work(padded) <= GROWS * self.work(sizes):
                return False
            self._own.add(sizes)
            return True

    def _suits(self, held: SizesOfCall, sizes: SizesOfCall) -> bool:
        """Whether to compute with arguments as they are padded, instead of padding them anew."""
        own = self.work(sizes)
        return (
            self._serves(held, sizes)
            and self.fits(held)
            and self.work(held) <= max(WASTE * own, own + self.compiles)
        )

    def _find(self, sizes: SizesOfCall) -> tuple[SizesOfCall | None, bool]:
        """A choice, and whether it holds for later calls too."""
        own = self.work(sizes)
        able = [(self.work(made), made) for made in self.made if self._serves(made, sizes)]
        if able and min(able)[0] <= WASTE * own:
            return min(able)[1], True
        rounded = self._rounded(sizes)
        extra = len(self.made) - FREELY
        # The more programs there are, the more has to be wasted before another one is made.
        limit = LITTLE if extra < 0 else self.compiles * 2.0**extra
        if able and min(able)[0] - own <= limit:
            self._missed(rounded, min(able)[0])
            worth = self._worth(sizes, max(extra, 0))
            if worth is None:
                return min(able)[1], False
            rounded = worth
        elif not able:
            alike = [made for made in self.made if self._differ_in_padding(made, rounded)]
            others = len(set(map(self._without_padding, self.made))) - FREELY
            if not alike and others >= 0 and not _is_often(self._missed(rounded, 0.0), others):
                # Sizes that are not padded may go on to change.
                return None, False
            whole = tuple(map(max, zip(rounded, *alike, strict=True)))
            # Sizes that are larger than all before may go on to grow.
            more = tuple(
                _next(size, 1) if alike and size > max(made[at] for made in alike) else size
                for at, size in enumerate(whole)
            )
            for one in (self._fitting(whole, sizes), self._fitting(more, sizes)):
                if self.work(one) - own <= limit:
                    rounded = one
        self.made.append(rounded)
        for served in [item for item in self._wanted if self._serves(rounded, item)]:
            self._no_longer_wanted(served)
        return rounded, True

    def _missed(self, sizes: SizesOfCall, work: float) -> int:
        """Count a call that a program of these sizes is for; how many there were.

        Args:
            sizes: of the program.
            work: of the program that served the call.
        """
        wanted = self._wanted.get(sizes)
        if wanted is None:
            served = [item for other, item in self._wanted.items() if self._serves(sizes, other)]
            wanted = self._wanted[sizes] = _MissingProgram(
                self.work(sizes),
                served_calls=sum(item.calls for item in served),
                served_work=sum(item.work for item in served),
            )
            if len(self._wanted) > _MISSED:
                self._no_longer_wanted(next(iter(self._wanted)))
        self._wanted.move_to_end(sizes)
        wanted.calls += 1
        wanted.work += work
        self._count_served(sizes, 1, work)
        return wanted.calls

    def _no_longer_wanted(self, sizes: SizesOfCall) -> None:
        """Forget a program that was not compiled, and the calls that it was for."""
        forgotten = self._wanted.pop(sizes)
        self._count_served(sizes, -forgotten.calls, -forgotten.work)

    def _count_served(self, sizes: SizesOfCall, calls: int, work: float) -> None:
        """Count calls for all programs that would have served them."""
        for one, wanted in self._wanted.items():
            if self._serves(one, sizes):
                wanted.served_calls += calls
                wanted.served_work += work

    def _worth(self, sizes: SizesOfCall, extra: int) -> SizesOfCall | None:
        """The sizes of a program that serves a call and would have saved most; None: too little.

        What has to be saved is the work that takes as long as making it.
        """
        best, most = None, self.compiles
        for one, wanted in self._wanted.items():
            saved = wanted.served_work - wanted.served_calls * wanted.own
            if saved >= most and _is_often(wanted.served_calls, extra) and self._serves(one, sizes):
                best, most = one, saved
        return best

    def _without_padding(self, sizes: SizesOfCall) -> SizesOfCall:
        return tuple(size for at, size in enumerate(sizes) if at not in self.positions)

    def _differ_in_padding(self, one: SizesOfCall, other: SizesOfCall) -> bool:
        return self._without_padding(one) == self._without_padding(other)

    def _rounded(self, own: SizesOfCall) -> SizesOfCall:
        """The padded sizes that a program is made for because of a call's own."""
        free = [at for at in self.positions if at not in self.following]
        return self._fitting(round_up(own, free, lambda sizes: self.work(self.settle(sizes))), own)

    def _fitting(self, sizes: SizesOfCall, own: SizesOfCall) -> SizesOfCall:
        """The next larger padded sizes that operators can divide as they do.

        Args:
            sizes: rounded above those of a call.
            own: the sizes of the call.
        """
        for unit in range(1, UNITS + 1):
            made = self.settle(
                tuple(
                    -(-size // unit) * unit if at in self.positions else size
                    for at, size in enumerate(sizes)
                )
            )
            if self._serves(made, own) and self.fits(made):
                return made
        return sizes

    def _serves(self, made: SizesOfCall, sizes: SizesOfCall) -> bool:
        return all(map(ge, made, sizes)) and self._differ_in_padding(made, sizes)

    def forget(self, sizes: SizesOfCall) -> None:
        """A program of these sizes could not be made."""
        with self._lock:
            if sizes in self.made:
                self.made.remove(sizes)
            self._chosen.clear()


def round_up(
    sizes: SizesOfCall, positions: Sequence[int], work: Callable[[SizesOfCall], float]
) -> SizesOfCall:
    """Round sizes above those of a call, as large as the work allows.

    Sizes that are equal stay equal, because operators may combine them.
    """
    own = work(sizes)
    most = WASTE * own
    few = min(most, _little(own))
    chosen = {sizes[at]: sizes[at] for at in positions}

    def with_(size: int, larger: int) -> SizesOfCall:
        bounds = {**chosen, size: larger}
        return tuple(bounds[item] if at in positions else item for at, item in enumerate(sizes))

    for size in sorted(chosen):
        rounded = (_next(size, steps) for steps in (4, 8, 16))
        chosen[size] = next((item for item in rounded if work(with_(size, item)) <= most), size)
        larger = _next(chosen[size] + 1, 4)
        while larger <= max(2 * size, SMALL) and work(with_(size, larger)) <= few:
            chosen[size] = larger
            larger = _next(larger + 1, 4)
    return with_(-1, -1)


def _little(own: float) -> float:
    """The most work that is hardly more than that of a call, whose own work is given."""
    return max(GROWS * own, own + LITTLE)


def _next(size: int, steps: int) -> int:
    """The next of so many sizes between a power of two and the next."""
    unit = max(1, (1 << max((size - 1).bit_length() - 1, 0)) // steps)
    return -(-size // unit) * unit
