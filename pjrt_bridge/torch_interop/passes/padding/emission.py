"""The padded graph while it is made: copies of nodes, masks, and sizes of the call.

A padded graph takes sizes that are padded as numbers, which become part of the program, and the
sizes of the call as 0-d tensors, which do not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import is_inserted, mark_inserted
from pjrt_bridge.torch_interop.passes.data_bounds import mark_checked
from pjrt_bridge.torch_interop.passes.padding.extents import (
    Extent,
    PaddedDims,
    PythonNumber,
    Size,
    Symbol,
    depends,
    product,
)

_SizeOf = Callable[[Size], Any]


class Emission:
    """Nodes that replace or surround one call.

    Args:
        graph: that is made.
        symbols: that are padded.
        known: symbols whose values a call has before it runs.
        device: of what operators make of numbers; None: the default.

    Attributes:
        given: expressions that calls of the graph bring behind its arguments: with the sizes of the
            call, as 0-d tensors of these types, or, where that is None, with the padded ones, as
            numbers.
        may_raise: positions or divisors are checked.
    """

    def __init__(
        self,
        graph: fx.Graph,
        symbols: frozenset[Symbol],
        known: Container[Symbol],
        device: torch.device | None = None,
    ) -> None:
        self._device = device
        self._graph = graph
        self._symbols = symbols
        self._known = known
        self._copies: dict[fx.Node, Any] = {}
        self._masks: dict[Any, fx.Node] = {}
        self._given: dict[tuple[str, torch.dtype | None], fx.Node] = {}
        self._filled: dict[Any, fx.Node] = {}
        self._last_placeholder: fx.Node | None = None
        self._origin: fx.Node | None = None
        self._changed: dict[fx.Node, fx.Node] = {}
        self.given: list[tuple[Size, torch.dtype | None]] = []
        self.may_raise = False

    # -- nodes of the graph before -----------------------------------------------------------------

    def placeholder(self, node: fx.Node) -> None:
        """Copy an argument."""
        self._last_placeholder = self._copies[node] = self._graph.node_copy(node)

    def begin(self, node: fx.Node) -> None:
        """Emit in the place of a node from here on."""
        self._origin = node
        self._changed = {}

    def change(self, node: fx.Node, made: fx.Node) -> None:
        """What stands for a node among the arguments of the one that is emitted."""
        self._changed[node] = made

    def copy(self, node: fx.Node) -> fx.Node:
        """Copy a node."""
        return self._graph.node_copy(node, self.__getitem__)

    def set(self, node: fx.Node, made: Any) -> None:
        """What stands for a node: another, or several for a node of several results."""
        self._copies[node] = made

    def __getitem__(self, node: fx.Node) -> Any:
        """The copy of a node in the padded graph."""
        return self._changed[node] if node in self._changed else self._copies[node]

    def mapped(self, arguments: Any) -> Any:
        """Arguments with what stands for nodes in them."""
        return fx.map_arg(arguments, self.__getitem__)

    def repeat(self, node: fx.Node, /, **changes: Any) -> fx.Node:
        """A call of a node's operator with some arguments changed, by name."""
        arguments = {**self.mapped(compat.bound_arguments(node)), **changes}
        assert isinstance(node.target, compat.OpOverload)
        positional = [
            arguments.pop(item.name)
            for item in node.target._schema.arguments
            if not item.kwarg_only
        ]
        return self._made(node.target, tuple(positional), arguments)

    def item(self, made: fx.Node, at: int) -> fx.Node:
        """One result of a call of several."""
        return self._made(operator.getitem, (made, at), {})

    # -- new nodes ---------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> fx.Node:
        """A call of an operator, by its name with overload.

        Nodes among the arguments are of the new graph, or of the old one: numbers of the call.
        """
        target = compat.operator(name)
        assert target is not None, name
        args, kwargs = fx.map_arg((args, kwargs), self._renewed)
        if self._device is not None and _makes_of_numbers(target):
            kwargs = {"device": self._device, **kwargs}
        made = self._made(target, args, kwargs)
        if self._origin is None or target is not self._origin.target:
            mark_inserted(made)
        return made

    def _renewed(self, node: fx.Node) -> Any:
        return node if node.graph is self._graph else self[node]

    def _made(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> fx.Node:
        made = self._graph.call_function(target, args, kwargs)
        if self._origin is not None:
            traces = ("stack_trace", "fwd_stack_trace", "nn_module_stack", "source_fn_stack")
            made.meta = {key: self._origin.meta[key] for key in traces if key in self._origin.meta}
            if is_inserted(self._origin):
                mark_inserted(made)
        # What is behind the end may be out of range.
        mark_checked(made)
        return made

    def is_known(self, size: Size) -> bool:
        """Whether a size is known before a call runs: it does not depend on data."""
        return all(symbol in self._known for symbol in getattr(size, "free_symbols", ()))

    def size(self, size: Size) -> Any:
        """A size of the padded call, as an argument of a node."""
        return int(size) if compat.is_number(size) else self._take(size, None)

    def actual(self, size: Size, dtype: torch.dtype = torch.int64) -> Any:
        """A size of the call, as a 0-d tensor; a number where it is not padded."""
        return self._take(size, dtype) if depends(size, self._symbols) else self.size(size)

    def count(self, size: Size, dtype: torch.dtype) -> fx.Node:
        """A size of the call, as a 0-d tensor."""
        if depends(size, self._symbols):
            return self._take(size, dtype)
        return self.call("aten.full.default", [], self.size(size), dtype=dtype)

    def _take(self, size: Size, dtype: torch.dtype | None) -> fx.Node:
        key = (str(size), dtype)
        if key not in self._given:
            assert self._last_placeholder is not None
            with self._graph.inserting_after(self._last_placeholder):
                made = self._graph.placeholder(f"size_{len(self.given)}")
                # A part of a padded graph has arguments that are called so.
                made.target = made.name
            self._last_placeholder = made
            self.given.append((size, dtype))
            self._given[key] = made
        return self._given[key]

    def positions(self, extent: Extent) -> fx.Node:
        """0, 1, ... along a padded dimension."""
        return self.call("aten.arange.default", self.size(product(extent)), dtype=torch.int64)

    def kept(self, extent: Extent) -> fx.Node:
        """For each position of a padded dimension whether it is no padding."""
        if (extent, "kept") in self._masks:
            return self._masks[extent, "kept"]
        found = None
        for at, factor in enumerate(extent):
            if not depends(factor, self._symbols):
                continue
            index = self.positions(extent)
            if at + 1 < len(extent):
                inner = self.size(product(extent[at + 1 :]))
                index = self.call("aten.div.Scalar_mode", index, inner, rounding_mode="floor")
            if at > 0:
                index = self.call("aten.remainder.Scalar", index, self.size(factor))
            one = self.call("aten.lt.Tensor", index, self.actual(factor))
            found = one if found is None else self.call("aten.logical_and.default", found, one)
        assert found is not None
        self._masks[extent, "kept"] = found
        return found

    def mask(self, dims: PaddedDims, rank: int) -> fx.Node:
        """Which elements of a tensor are no padding, in a shape that broadcasts to it."""
        key = (tuple(sorted(dims.items(), key=str)), rank)
        if key not in self._masks:
            found = None
            for dim, extent in dims.items():
                one = self.along(self.kept(extent), dim, rank)
                found = one if found is None else self.call("aten.logical_and.default", found, one)
            assert found is not None
            self._masks[key] = found
        return self._masks[key]

    def along(self, vector: fx.Node, dim: int, rank: int) -> fx.Node:
        """A vector as a tensor of more dimensions, along one of them."""
        for at in range(rank):
            if at != dim:
                vector = self.call("aten.unsqueeze.default", vector, at)
        return vector

    def filled(
        self, made: fx.Node, dims: PaddedDims, rank: int, number: PythonNumber, dtype: torch.dtype
    ) -> fx.Node:
        """A tensor whose padding is a number.

        Args:
            made: the tensor.
            dims: the padded dimensions that are filled.
            rank: its number of dimensions.
            number: for the padding.
            dtype: of its elements.
        """
        key = (made, tuple(sorted(dims.items(), key=str)), repr(number))
        if key not in self._filled:
            other = self.call("aten.full.default", [], _of(number, dtype), dtype=dtype)
            self._filled[key] = self.call("aten.where.self", self.mask(dims, rank), made, other)
        return self._filled[key]

    def merged(self, made: fx.Node, dim: int, extent: Extent, wanted: Extent) -> fx.Node:
        """A tensor with the elements of a dimension where another extent of its size has them."""
        key = (made, dim, extent, wanted)
        if key not in self._filled:
            place = self.place_among_padding(extent, self.place_in_call(wanted))
            place = self.call("aten.clamp.default", place, None, self.size(product(extent) - 1))
            self._filled[key] = self.call("aten.index_select.default", made, dim, place)
        return self._filled[key]

    def place_in_call(self, extent: Extent) -> fx.Node:
        """For each position of a padded dimension that of the element in the call."""
        return self._digits(self.positions(extent), extent, self.size, self.actual)

    def place_among_padding(self, extent: Extent, index: fx.Node) -> fx.Node:
        """For positions in the call those in a padded dimension."""
        return self._digits(index, extent, self.actual, self.size)

    def _digits(self, index: fx.Node, extent: Extent, before: _SizeOf, after: _SizeOf) -> fx.Node:
        """Row-major positions among factors of some sizes as those among factors of others."""
        if not any(depends(factor, self._symbols) for factor in extent[1:]):
            return index
        found = None
        for at in reversed(range(len(extent))):
            digit = index
            if at > 0:
                divisor, kind = before(extent[at]), "Scalar"
                if before == self.actual and depends(extent[at], self._symbols):
                    # PyTorch refuses to divide by zero.
                    divisor, kind = self.call("aten.clamp.default", divisor, 1), "Tensor"
                digit = self.call(f"aten.remainder.{kind}", index, divisor)
                index = self.call("aten.div.Tensor_mode", index, divisor, rounding_mode="floor")
            if at + 1 < len(extent):
                digit = self.call("aten.mul.Tensor", digit, after(product(extent[at + 1 :])))
            found = digit if found is None else self.call("aten.add.Tensor", found, digit)
        assert found is not None
        return found

    def longer(self, made: fx.Node, dim: int, rank: int, more: Any) -> fx.Node:
        """A tensor with zeros behind a dimension.

        Args:
            made: the tensor.
            dim: the dimension.
            rank: its number of dimensions.
            more: how many zeros, as an argument of a node.
        """
        border = [0] * (2 * (rank - 1 - dim)) + [0, more]
        return self.call("aten.constant_pad_nd.default", made, border, 0)

    def rows(
        self, made: fx.Node, dim: int, start: Size, count: Size, among: Size, step: Size = 1
    ) -> fx.Node:
        """Rows of a tensor from a position that the call may decide.

        Args:
            made: the tensor.
            dim: of the rows.
            start: position of the first.
            count: how many.
            among: how many there are in the call; further ones are the last.
            step: from one to the next.
        """
        index = self.counted(start, count, step)
        return self.call("aten.index_select.default", made, dim, self.within(index, among))

    def counted(self, start: Size, count: Size, step: Size) -> fx.Node:
        """So many whole numbers from a first one; the steps may be those of the call."""
        made = self.call("aten.arange.default", self.size(count), dtype=torch.int64)
        if step != 1:
            made = self.call("aten.mul.Tensor", made, self.actual(step))
        if start != 0:
            made = self.call("aten.add.Tensor", made, self.actual(start))
        return made

    def checked_positions(self, index: fx.Node, low: Size, high: Size, where: str) -> fx.Node:
        """Positions as they are; the program fails where one is out of range."""
        self.may_raise = True
        ends = (self.count(end, torch.int64) for end in (low, high))
        return self.call("pjrt_bridge.checked_positions.default", index, *ends, where)

    def checked_divisors(self, divisors: fx.Node, where: str) -> fx.Node:
        """Divisors as they are; the program fails where one is zero."""
        self.may_raise = True
        return self.call("pjrt_bridge.checked_divisors.default", divisors, where)

    def within(self, index: fx.Node, among: Size) -> fx.Node:
        """Positions from 0 to the last of the call."""
        index = self.call("aten.clamp.default", index, 0)
        last = self.actual(among - 1)
        if depends(among, self._symbols):
            return self.call("aten.minimum.default", index, last)
        return self.call("aten.clamp.default", index, None, last)


def _makes_of_numbers(target: compat.OpOverload) -> bool:
    """Whether an operator makes a tensor on a device that it is given, of no other tensor."""
    arguments = target._schema.arguments
    return any(item.name == "device" for item in arguments) and not any(
        "Tensor" in str(item.type) for item in arguments
    )


def _of(number: PythonNumber, dtype: torch.dtype) -> PythonNumber:
    """A number as an element type has it; infinity is the largest number of integers."""
    if dtype is torch.bool:
        return bool(number > 0)
    if dtype.is_floating_point or dtype.is_complex or abs(number) != float("inf"):
        return number
    info = torch.iinfo(dtype)
    return info.max if number > 0 else info.min
