"""The base of PJRT plugins in Python: functions of the table as functions of Python objects.

`examples/vendor_plugin` has a plugin that is written with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pjrt_bridge.abi.functions import FUNCTIONS, SLOTS_0_81
from pjrt_bridge.abi.implement import Implementation, TableFunction
from pjrt_bridge.abi.implementation_objects import Keep, Objects, Status
from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ErrorCode

_T = TypeVar("_T")

GetterOutput = str | int | float | tuple[int, ...] | Mapping[str, NamedValue]
"""An output of a getter: a text, a number or pointer, an array of 64-bit numbers or pointers, or
named values, in which lists are tuples."""

_KEEP = Keep()


def invalid(message: str) -> Status:
    """The error of a caller's mistake, to be raised."""
    return Status(ErrorCode.INVALID_ARGUMENT, message)


def unimplemented(message: str) -> Status:
    """The error of what a plugin cannot do, to be raised."""
    return Status(ErrorCode.UNIMPLEMENTED, message)


class Functions(dict[str, TableFunction]):
    """Functions of a PJRT_Api, by name without `PJRT_`.

    Attributes:
        objects: what stands behind the pointers that callers were given.
    """

    def __init__(self) -> None:
        super().__init__()
        self.objects = Objects()

    def implements(
        self, name: str, kind: type[_T]
    ) -> Callable[[Callable[[_T, Any], None]], Callable[[_T, Any], None]]:
        """Put the decorated function into a slot.

        Args:
            name: of the slot.
            kind: class of the object behind the first pointer of the args struct. The function
                gets that object and the args; for a pointer to nothing or to an object of another
                class callers get INVALID_ARGUMENT.
        """
        pointer = _first_field(name)

        def put(function: Callable[[_T, Any], None]) -> Callable[[_T, Any], None]:
            self[name] = lambda args: function(self.objects.get(getattr(args, pointer), kind), args)
            return function

        return put

    def getter(self, name: str, kind: type[_T], /, **outputs: Callable[[_T], GetterOutput]) -> None:
        """Put a function into a slot that fills outputs with properties of an object.

        Args:
            name: of the slot.
            kind: as for `implements`.
            **outputs: what to fill in, by field; see `fill`.
        """

        @self.implements(name, kind)
        def get(found: _T, args: Any) -> None:
            fill(args, **{field: value_of(found) for field, value_of in outputs.items()})

    def destructor(self, name: str, kind: type[object]) -> None:
        """Put a function into a slot that ends an object; NULL is none."""
        pointer = _first_field(name)

        def destroy(args: Any) -> None:
            if getattr(args, pointer):
                self.objects.remove(getattr(args, pointer), kind)

        self[name] = destroy

    def table(self) -> Implementation:
        """A PJRT_Api 0.81 of these functions; the others return UNIMPLEMENTED."""
        # An error is better than an empty slot, which callers have to look for first.
        others = {name: _unimplemented(name) for name in [*FUNCTIONS][_ERRORS:SLOTS_0_81]}
        return Implementation(others | self)


_ERRORS = 3
"""Slots at the start of the table that `Implementation` fills."""


def fill(args: Any, /, **outputs: GetterOutput) -> None:
    """Fill outputs of an args struct with values that live as long as the process.

    Texts, arrays and named values have an address and a size: the latter goes to the field
    `FIELD_size` or `num_FIELD`.
    """
    for field, value in outputs.items():
        if isinstance(value, int | float):
            setattr(args, field, value)
            continue
        address, size = _kept(tuple(value.items()) if isinstance(value, Mapping) else value)
        setattr(args, field, address)
        setattr(args, f"{field}_size" if hasattr(args, f"{field}_size") else f"num_{field}", size)


def host_array(
    address: int | None, shape: Sequence[int], dtype: DType, strides: Sequence[int] | None = None
) -> NDArray[Any]:
    """An array over memory that the caller keeps.

    Args:
        address: of the first element.
        shape: of the array.
        dtype: element type.
        strides: in bytes, of any sign; None: the array is row-major.

    Raises:
        Status: INVALID_ARGUMENT; the address is NULL, and there are elements.
    """
    if 0 in shape:
        return np.empty(shape, dtype.numpy)
    if not address:
        raise invalid(f"the address of {tuple(shape)} elements is NULL")
    # Types of ml_dtypes have no name that other libraries know.
    return np.asarray(_ArrayAtAddress(address, shape, f"|V{dtype.itemsize}", strides)).view(
        dtype.numpy
    )


class _ArrayAtAddress:
    """Source: NumPy's array interface, version 3."""

    def __init__(
        self, address: int, shape: Sequence[int], typestr: str, strides: Sequence[int] | None
    ) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": tuple(shape),
            "typestr": typestr,
            "strides": None if strides is None else tuple(strides),
        }


@cache
def _kept(value: str | tuple[Any, ...]) -> tuple[int, int]:
    """Address and size of a text, of an array, or of named values given as pairs."""
    if isinstance(value, str):
        return _KEEP.text(value)
    if value and isinstance(value[0], tuple):
        return _KEEP.named_values(dict(value))
    return _KEEP.int64s(value), len(value)


def _first_field(name: str) -> str:
    struct = FUNCTIONS.get(name)
    if struct is None:
        raise KeyError(f"the args of PJRT_{name} are not declared")
    return struct.fields[_HEADER].name


_HEADER = 2
"""Fields before the first one of a function's own: struct_size and extension_start."""


def _unimplemented(name: str) -> TableFunction:
    def function(args: Any) -> None:
        raise unimplemented(f"PJRT_{name} is not implemented")

    return function
