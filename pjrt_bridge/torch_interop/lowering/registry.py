"""The table from operator names to lowerings.

Operators are named as torch prints an overload (`"aten.add.Tensor"`), never bound as objects: an
overload that another torch version lacks breaks nothing. The modules of this package register their
families when they are imported, which happens at the first look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, TypeVar

from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.stablehlo.builder.builder import Value

Lowering = Callable[..., Value | Sequence[Value | None]]
"""`(context, *args, **kwargs)`, the node's arguments with every tensor replaced by a `Value`.

Returns the one output, or one entry per output, None where torch's output is None.
"""

_LOWERINGS: dict[str, Lowering] = {}
_AS_VALUES: dict[str, frozenset[str]] = {}

_OWN = f"{__package__}."

_L = TypeVar("_L", bound=Callable[..., Any])


class NotLowerable(PjrtBridgeError):
    """The operator has a lowering, but this use of it cannot be expressed in StableHLO.

    Attributes:
        reason: why, in the user's terms.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoLowering(NotLowerable):
    """There is no lowering for the operator."""


def lowering(*names: str, values: Collection[str] = ()) -> Callable[[_L], _L]:
    """Register the decorated function as the lowering of each named operator overload.

    Args:
        names: of the overloads.
        values: arguments, by their names in ATen's schema, whose numbers it also takes as 0-d
            `Value`s: float64 for floats, int64 for integers. So one program serves all numbers.

    Raises:
        ValueError: a name has a lowering already.
    """

    def register(function: _L) -> _L:
        for name in names:
            if name in _LOWERINGS:
                raise ValueError(f"operator {name} has two lowerings")
            _LOWERINGS[name] = function
            _AS_VALUES[name] = frozenset(values)
        return function

    return register


@cache
def _import_families() -> None:
    package = import_module(__package__)
    for family in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(family.name)


def find_lowering(name: str) -> Lowering | None:
    """The lowering of an operator overload such as `"aten.add.Tensor"`, or None."""
    _import_families()
    return _LOWERINGS.get(name)


def taken_as_values(name: str) -> frozenset[str]:
    """Arguments of an operator overload whose numbers its lowering also takes as values."""
    _import_families()
    return _AS_VALUES.get(name, frozenset())


def names() -> tuple[str, ...]:
    """Every operator overload that has a lowering in this package, sorted."""
    _import_families()
    return tuple(
        sorted(name for name, found in _LOWERINGS.items() if found.__module__.startswith(_OWN))
    )
