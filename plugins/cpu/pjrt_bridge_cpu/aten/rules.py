"""Rules: which uses of an operator become calls of PyTorch's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.torch_interop.lowering.api import Context, Lowering, NoLowering, find_lowering
from pjrt_bridge_cpu.aten.calls import KernelCall, Load, emit
from pjrt_bridge_cpu.aten.gains import Measured, nothing, ratio
from pjrt_bridge_cpu.aten.library import is_stated_so
from pjrt_bridge_cpu.aten.operators import Operator

FLOAT32 = dtypes.of("float32")
BFLOAT16 = dtypes.of("bfloat16")

Usable = Callable[[str], bool]
"""Whether a use, by its name, gave right results when it was tried on this machine."""


@dataclass(frozen=True)
class Changes:
    """Tells of answers that are other ones later, because they were found in the background.

    Attributes:
        version: see `Kernels.version`.
        on_change: see `Kernels.on_change`.
    """

    version: Callable[[], int]
    on_change: Callable[[int, Callable[[], None]], None]


class KernelRule(Protocol):
    """Lowers a use of an operator, or returns None for the portable lowering."""

    def __call__(self, c: Context, use: UsableKernels, /, *args: Any, **kwargs: Any) -> Any:
        """See the class."""


class UsableKernels:
    """Emits calls of PyTorch's kernels that are usable on this machine.

    Args:
        usable: tells which uses are.
        measured: what calls gain.
        changes: of what these two answer; None: there are none.

    Attributes:
        changes: see above.
    """

    def __init__(
        self, usable: Usable, measured: Measured = nothing, changes: Changes | None = None
    ) -> None:
        self.changes = changes
        self._usable = usable
        self._measured = measured

    def __call__(self, b: Builder, call: KernelCall, dtype: DType) -> tuple[Value, ...] | None:
        """The results of a call on an element type; None where it is not usable, or slower."""
        if not (is_stated_so(call.operator) and self._usable(use_name(call, dtype))):
            return None
        return emit(b, call) if self.pays(call.load, dtype) else None

    def pays(self, load: Load | None, dtype: DType, *, unmeasured: bool = True) -> bool:
        """Whether a call is as fast as XLA's own code, as far as that was measured.

        Args:
            load: of the call; None: it is made whatever it gains.
            dtype: of its operands.
            unmeasured: the answer where it was not.
        """
        found = None if load is None else ratio(self._measured(), load, dtype)
        if found is None:
            return load is None or unmeasured
        return found <= _EQUAL

    def prefers(self, load: Load, other: Load, dtype: DType, *, unmeasured: bool) -> bool:
        """Whether a call is faster than another one for the same; see `pays`."""
        measured = self._measured()
        pair = [ratio(measured, item, dtype) for item in (load, other)]
        if pair[0] is None or pair[1] is None:
            return unmeasured
        return pair[0] < pair[1]


def load_of(operator: Operator, x: Value) -> Load:
    """The load of an operator that goes through all elements of a value."""
    name = operator.name.removeprefix("aten::")
    return Load(_LIKE.get(name, name), x.size)


_EQUAL = 1.05
"""Ratios up to this are those of equals: a call needs less memory, and measurements scatter."""

_LIKE = {"cumprod": "cumsum"}
"""Operators that take as long as another one."""


def use_name(call: KernelCall, dtype: DType) -> str:
    """The name of a use: the operator and the element type."""
    return f"{call.operator} {dtype}"


def lowerings(rules: Mapping[str, KernelRule], use: UsableKernels) -> dict[str, Lowering]:
    """Lowerings by rules, which call the portable ones where a rule returns None."""
    return {name: partial(_lower, name, rule, use) for name, rule in rules.items()}


def _lower(
    name: str, rule: KernelRule, use: UsableKernels, c: Context, *args: Any, **kwargs: Any
) -> Any:
    found = rule(c, use, *args, **kwargs)
    if found is not None:
        return found
    general = find_lowering(name)
    if general is None:
        raise NoLowering(f"{name} has no portable lowering")
    return general(c, *args, **kwargs)


def only(found: Sequence[Value | None] | None) -> Value | None:
    """The result of a call that has one; None where the call is not usable."""
    return None if found is None else found[0]


def grain(work: int, length: int) -> int:
    """The least length of the parts of a call, so that each is worth waking a thread.

    Args:
        work: of the whole call, in additions or in elements that are read.
        length: of the dimension that is cut.
    """
    # A thread that sleeps wakes too late for less.
    if work <= 2 * _PART:
        return length
    return max(1, -(-_PART * length // work))


_PART = 1 << 18
"""Work of a part that takes from 10 us, for sums and products, to 50 us. A thread that is awake
begins within 2 us, one that sleeps after 50."""

PIECES = 4
"""Parts for each thread of calls that go through rows."""
