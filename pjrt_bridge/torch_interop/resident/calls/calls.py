"""A call of an operator on resident tensors: what its program depends on, and what it is given.

A program takes the arrays that storages hold, each once however many tensors view it, and makes the
views itself. Numbers of Python are part of it, but for those that were found to change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.torch_interop import precision
from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.storage import (
    Contents,
    Geometry,
    contents_of,
    geometry_of,
)


@dataclass(frozen=True)
class Leaf:
    """A tensor in a call: a view of what the call is given.

    Attributes:
        place: among `Call.given`.
        geometry: None where it is all of it.
        offset: of the view, by its place among `Call.numbers`; None where `geometry` has it.
    """

    place: int
    geometry: Geometry | None
    offset: int | None = None


@dataclass(frozen=True)
class NumberArgument:
    """A number in a call, by its place among `Call.numbers`."""

    place: int


class TensorKey(NamedTuple):
    """What a program depends on of a tensor in a call.

    Attributes:
        place: among `Call.given`; None of a host tensor.
        shape: of the array in memory.
        dtype: of its elements.
        geometry: None where the tensor is all of it.
    """

    place: int | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    geometry: Geometry | None


class OtherType(Exception):
    """A tensor views a storage as elements of another type than the call can take them as."""


class Call:
    """One call of an operator: its arguments, and the arrays behind them.

    Args:
        op: the operator.
        args: positional arguments.
        kwargs: keyword arguments.
        moves: the offsets of views of parts of storages are numbers of the call.

    Attributes:
        key: equal for calls that one program can serve, but for `numbers`.
        given: contents of storages, each once, and host tensors.
        numbers: of Python, in their order: floats, integers that stand for tensors or scalars, and
            offsets.
        has_lists: lists of integers are among them.
        index: of the device.

    Raises:
        DeviceError: tensors on several devices, or a host tensor that is neither a number nor of
            positions.
        OtherType: tensors view one storage as elements of several types, or one of a type that the
            storage cannot hold.
    """

    __slots__ = (
        "_leaves",
        "_places",
        "args",
        "given",
        "has_lists",
        "index",
        "key",
        "kwargs",
        "moves",
        "numbers",
        "op",
    )

    def __init__(
        self,
        op: OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        moves: bool = False,
    ) -> None:
        self.op = op
        self.moves = moves
        self.args = args
        self.kwargs = kwargs
        self.given: list[Contents | torch.Tensor] = []
        self.numbers: list[float] = []
        self.has_lists = False
        self.index = -1
        self._places: dict[int, int] = {}
        self._leaves: list[Leaf] = []
        places = form_of(op).numbers
        key: tuple[Hashable, ...] = (
            op,
            *(
                self._key_of_numbers(value) if at in places else self._key(value)
                for at, value in enumerate(args)
            ),
        )
        if kwargs:
            key += tuple((name, self._key(value)) for name, value in kwargs.items())
        if self.index < 0:
            self.index = 0
        self.key = (*key, self.index, torch.get_default_dtype(), precision.settings())

    def _key(self, value: Any) -> Hashable:
        kind = type(value)
        if kind is float:
            return self._key_of_number(value)
        if isinstance(value, torch.Tensor):
            return self._key_of_tensor(value)
        if isinstance(value, (list, tuple)):
            return tuple(map(self._key, value))
        if kind is torch.device:
            if value.type == NAME:
                self._is_on(value.index or 0, value)
            return kind, value
        if kind is complex:
            # Zeros of either sign are equal, and NaN is not equal to itself.
            return kind, repr(value)
        # 1 and True are equal.
        return kind, value

    def _key_of_numbers(self, value: Any) -> Hashable:
        """The key of an argument whose integers are told from each other as floats are."""
        if type(value) is int:
            return self._key_of_number(value)
        if type(value) is list and all(type(item) is int for item in value):
            self.has_lists = True
            return tuple(map(self._key_of_number, value))
        return self._key(value)

    def _key_of_number(self, value: float) -> Hashable:
        self.numbers.append(value)
        return int if isinstance(value, int) else float

    def _key_of_tensor(self, value: torch.Tensor) -> Hashable:
        device = value.device
        if device.type != NAME:
            if device.type == "cpu" and not (self._is_number(value) or self._is_position(value)):
                raise DeviceError(
                    f"{self.op}: Expected all tensors to be on the same device, but found one of "
                    f"shape {tuple(value.shape)} and type {value.dtype} on {device} beside those "
                    f"on '{NAME}'; move it with .to('{NAME}')"
                )
            self._leaves.append(Leaf(len(self.given), None))
            self.given.append(value)
            return TensorKey(None, value.shape, value.dtype, None)
        self._is_on(device.index or 0, value)
        contents = contents_of(value)
        place = self._places.get(id(contents))
        if contents.dtype is not value.dtype and (
            place is not None or not transfer.retype(contents, value.dtype)
        ):
            raise OtherType
        if place is None:
            place = self._places[id(contents)] = len(self.given)
            self.given.append(contents)
        geometry = geometry_of(value, contents)
        offset = None
        if self.moves and geometry is not None and can_move(value):
            offset = len(self.numbers)
            self.numbers.append(geometry.offset)
            geometry = geometry._replace(offset=-1)
        self._leaves.append(Leaf(place, geometry, offset))
        return TensorKey(place, contents.shape, contents.dtype, geometry)

    def template(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, with a `Leaf` for each tensor and a `NumberArgument` for each number."""
        leaves = iter(self._leaves)
        numbers = iter(range(len(self.numbers)))
        places = form_of(self.op).numbers

        def visit(value: Any) -> Any:
            if type(value) is float:
                return NumberArgument(next(numbers))
            if isinstance(value, torch.Tensor):
                leaf = next(leaves)
                if leaf.offset is not None:
                    next(numbers)
                return leaf
            if isinstance(value, (list, tuple)):
                return [visit(item) for item in value]
            if isinstance(value, torch.device):
                return torch.device("cpu") if value.type == NAME else value
            return value

        def of_numbers(value: Any) -> Any:
            if type(value) is int:
                return NumberArgument(next(numbers))
            if type(value) is list and all(type(item) is int for item in value):
                return [NumberArgument(next(numbers)) for _ in value]
            return visit(value)

        args = [
            of_numbers(item) if at in places else visit(item) for at, item in enumerate(self.args)
        ]
        return args, {name: visit(item) for name, item in self.kwargs.items()}

    def _is_number(self, value: torch.Tensor) -> bool:
        """Whether a host tensor is one number that is read, which torch takes for any device."""
        return not value.dim() and not any(
            item is value
            for place in form_of(self.op).written
            for item in tensors_in(argument(place, self.args, self.kwargs))
        )

    def _is_position(self, value: torch.Tensor) -> bool:
        """Whether a host tensor has positions, or is a mask, which torch takes for any device."""
        if self.op.__name__.startswith(AT_POSITIONS):
            places = self.args[1]
        elif self.op.__name__.startswith(_FILLING):
            places = self.args[2:3]
        else:
            return False
        return self.args[0].device.type == NAME and any(item is value for item in places)

    def _is_on(self, index: int, what: Any) -> None:
        if self.index < 0:
            self.index = index
        elif index != self.index:
            shown = f"tensor of shape {tuple(what.shape)}" if hasattr(what, "shape") else "device"
            raise DeviceError(
                f"{self.op}: Expected all tensors to be on the same device, but found a {shown} "
                f"on '{NAME}:{index}' beside '{NAME}:{self.index}'"
            )


def can_move(view: torch.Tensor) -> bool:
    """Whether one program can read, or write, a view at any offset: without repeated elements."""
    return not (view.is_conj() or view.is_neg() or 0 in view.stride() or 0 in view.shape)


AT_POSITIONS = ("index.", "index_put", "_index_put", "_unsafe_index")
"""Operators, by the beginnings of their names, whose second argument is a list of positions."""

_FILLING = "index_fill"
"""The beginning of the names of operators whose third argument is a tensor of positions."""

_OF_NUMBERS = ("Tensor", "number")
"""Types of arguments, by their names, that integers are values of, and not sizes or positions."""

_OF_NUMBERS_TOO = {
    "clamp.default": (1, 2),
    "clamp_.default": (1, 2),
    "randint_like.low_dtype": (1, 2),
    "roll.default": (1,),
}
"""For operators the positions of others that no size depends on."""

_OF_EXPONENTS = ("pow", "float_power", "__ipow__")
"""Operators, by the beginnings of their names, that compute whole powers as products."""


@dataclass(frozen=True)
class OperatorSchema:
    """An operator's schema: its results, and the arguments that it writes.

    Attributes:
        returns: for each result the name and position of the argument that it is; None for a new
            one.
        written: names and positions of the arguments that it writes into.
        is_view: a result is a view of an argument.
        numbers: positions of arguments whose integers may become arguments of a program.
    """

    returns: tuple[tuple[str, int] | None, ...]
    written: tuple[tuple[str, int], ...]
    is_view: bool
    numbers: frozenset[int]


@cache
def form_of(op: OpOverload) -> OperatorSchema:
    """The form of an operator."""
    schema = op._schema
    named = [(item.name, at) for at, item in enumerate(schema.arguments)]
    written = tuple(
        name
        for name, item in zip(named, schema.arguments, strict=True)
        if item.alias_info is not None and item.alias_info.is_write
    )
    aliases = {
        alias: name
        for name, item in zip(named, schema.arguments, strict=True)
        if item.alias_info is not None and item.alias_info.is_write
        for alias in item.alias_info.before_set
    }
    returns: list[tuple[str, int] | None] = []
    is_view = False
    for item in schema.returns:
        info = item.alias_info
        found = None if info is None else next(iter(info.before_set), None)
        returns.append(aliases.get(found) if found is not None else None)
        is_view = is_view or (info is not None and not info.is_write)
    numbers = frozenset(
        at
        for at, item in enumerate(schema.arguments)
        if str(item.real_type) in _OF_NUMBERS and not op.__name__.startswith(_OF_EXPONENTS)
    ).union(_OF_NUMBERS_TOO.get(op.__name__, ()))
    return OperatorSchema(tuple(returns), written, is_view, numbers)


def argument(where: tuple[str, int], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An argument of a call by its name and position; None where it is not given."""
    name, at = where
    return args[at] if at < len(args) else kwargs.get(name)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
