"""Python numbers among a graph's arguments, lifted out of it and passed as 0-d tensors.

A Python number that differs from call to call, such as a step or a position, would be substituted
like a size, and each value would be compiled anew. A number that no size depends on is computed in
Python instead, and passed to the program as a 0-d tensor.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.lowering import registry

_ARITHMETIC = {
    "aten.add.Scalar": "aten.add.Tensor",
    "aten.add.Tensor": "aten.add.Tensor",
    "aten.div.Scalar": "aten.div.Tensor",
    "aten.div.Tensor": "aten.div.Tensor",
    "aten.mul.Scalar": "aten.mul.Tensor",
    "aten.mul.Tensor": "aten.mul.Tensor",
    "aten.pow.Tensor_Scalar": "aten.pow.Tensor_Tensor",
    "aten.sub.Scalar": "aten.sub.Tensor",
    "aten.sub.Tensor": "aten.sub.Tensor",
}
_WHOLE = {
    "aten.__lshift__.Scalar": "aten.__lshift__.Tensor",
    "aten.__rshift__.Scalar": "aten.__rshift__.Tensor",
    "aten.bitwise_and.Scalar": "aten.bitwise_and.Tensor",
    "aten.bitwise_and.Tensor": "aten.bitwise_and.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar": "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_right_shift.Tensor_Scalar": "aten.bitwise_right_shift.Tensor",
    "aten.bitwise_or.Scalar": "aten.bitwise_or.Tensor",
    "aten.bitwise_or.Tensor": "aten.bitwise_or.Tensor",
    "aten.bitwise_xor.Scalar": "aten.bitwise_xor.Tensor",
    "aten.bitwise_xor.Tensor": "aten.bitwise_xor.Tensor",
    "aten.div.Scalar_mode": "aten.div.Tensor_mode",
    "aten.div.Tensor_mode": "aten.div.Tensor_mode",
    "aten.floor_divide.Scalar": "aten.floor_divide.default",
    "aten.floor_divide.default": "aten.floor_divide.default",
    "aten.fmod.Scalar": "aten.fmod.Tensor",
    "aten.fmod.Tensor": "aten.fmod.Tensor",
    "aten.remainder.Scalar": "aten.remainder.Tensor",
    "aten.remainder.Tensor": "aten.remainder.Tensor",
}
"""Operators that round, or compute with bits."""
_DIVIDING = tuple(f"aten.{name}." for name in ("div", "floor_divide", "fmod", "remainder"))
"""Beginnings of the names of those that PyTorch raises for where integers are divided by zero."""
_COMPARISONS = {
    f"aten.{name}.Scalar": f"aten.{name}.Tensor" for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_FILLS = {"aten.full.default": 1, "aten.full_like.default": 1, "aten.scalar_tensor.default": 0}
"""Operators that fill a tensor with a number, and where it is among their arguments."""

_NUMBER_OF = "aten._local_scalar_dense.default"

# ATen computes with a Python number in float32, as it does with a 0-d tensor of that type.
_ROUNDED = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class NumberUse:
    """How a node that is given a number reads a 0-d tensor.

    Attributes:
        dtype: of the 0-d tensor.
        overload: the operator that takes it; None where a tensor is filled.
        role: what the number is to the operator. An operand wraps where it is out of the range of
            an integer type, so does a divisor, which must not be zero then; a parameter does not.
        beside: the type of the tensor that the operator takes beside an operand or a divisor.
    """

    dtype: torch.dtype
    overload: str | None
    role: Literal["operand", "divisor", "parameter"] = "operand"
    beside: torch.dtype | None = None

    def read(self, value: complex) -> torch.Tensor:
        """The 0-d tensor.

        Raises:
            OverflowError: an integer that does not fit 64 bits.
            RuntimeError: a tensor is to be filled with what is out of its type's range, an integer
                is to be divided by what is zero in its type, or PyTorch has no common type of the
                number and the tensor beside it.
        """
        if self.overload is None or self.role == "parameter":
            return torch.full((), value, dtype=self.dtype, device="cpu")
        if self.beside is torch.bool:
            torch.result_type(torch.empty((0,), dtype=torch.bool, device="cpu"), value)
        read = tensor_of(value, self.dtype)
        if self.role == "divisor" and not read:
            raise RuntimeError(
                f"ZeroDivisionError: an integer is divided by {value}, which is 0 as {self.dtype}"
            )
        return read


def tensor_of(value: complex, dtype: torch.dtype) -> torch.Tensor:
    """A number as a 0-d tensor, as operators take one: what is out of an integer's range wraps."""
    if not isinstance(value, int) or dtype.is_floating_point or dtype.is_complex:
        return torch.full((), value, dtype=dtype, device="cpu")
    # PyTorch reads a number beyond those of int64 as one of uint64.
    return torch.tensor(value - 2**64 if 2**63 <= value < 2**64 else value, device="cpu").to(dtype)


@dataclass(frozen=True)
class LiftedScalars:
    """A graph whose free numbers were taken out.

    Attributes:
        module: the graph. It does not read the arguments that are numbers; the 0-d tensors are
            placeholders after all others. It returns None where a result is a number.
        calculation: a graph that takes the numbers; it returns the values of the 0-d tensors, then
            the results that are numbers.
        positions: of the arguments that are numbers.
        uses: of the 0-d tensors.
        results: positions of the results that are numbers.
    """

    module: fx.GraphModule
    calculation: fx.GraphModule
    positions: tuple[int, ...]
    uses: tuple[NumberUse, ...]
    results: tuple[int, ...]

    def prologue(self, arguments: list[Any]) -> Sequence[Any]:
        """Put 0-d tensors behind the arguments; what the calculation gave."""
        found: Sequence[Any] = self.calculation.forward(*(arguments[at] for at in self.positions))
        for at in self.positions:
            arguments[at] = None
        arguments.extend(use.read(value) for value, use in zip(found, self.uses, strict=False))
        return found

    def epilogue(self, state: Sequence[Any], outputs: list[Any]) -> list[Any]:
        """Put the results that are numbers into their places."""
        for at, value in zip(self.results, state[len(self.uses) :], strict=True):
            outputs[at] = value
        return outputs


def lift_scalars(module: fx.GraphModule) -> LiftedScalars | None:
    """Take numbers that no size depends on out of a graph; None where there are none."""
    if not any(map(_is_given_number, module.graph.nodes)):
        return None
    graph = fx.Graph()
    outputs = graph.graph_copy(module.graph, {})
    assert isinstance(outputs, tuple | list)
    end = graph.output(tuple(outputs))
    # `get_attr` nodes are resolved in the module that owns the graph.
    made = fx.GraphModule(module, graph)
    made.graph = graph
    free = _free(graph)
    if not free:
        return None
    uses = [
        (node, number, use)
        for node in graph.nodes
        if node not in free
        for number in node.all_input_nodes
        if number in free and (use := use_of(node, number))
    ]
    copies: dict[fx.Node, fx.Node] = {}
    calculation = _calculation(free, copies)
    results = tuple(at for at, item in enumerate(outputs) if item in free)
    given = [*(number for _, number, _ in uses), *(outputs[at] for at in results)]
    calculation.output(tuple(copies[number] for number in given))
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for index, (node, number, use) in enumerate(uses):
        _read_tensor(graph, node, number, use, f"number_{index}")
    end.args = (tuple(None if item in free else item for item in outputs),)
    for node in reversed(free):
        if node.op == "placeholder":
            node.meta["val"] = None
        else:
            graph.erase_node(node)
    made.recompile()
    return LiftedScalars(
        module=made,
        calculation=fx.GraphModule(module, calculation),
        positions=tuple(at for at, node in enumerate(placeholders) if node in free),
        uses=tuple(use for *_, use in uses),
        results=results,
    )


def _is_given_number(node: fx.Node) -> bool:
    return node.op == "placeholder" and isinstance(
        compat.promise(node), (torch.SymInt, torch.SymFloat)
    )


def _free(graph: fx.Graph) -> list[fx.Node]:
    """Placeholders that are numbers on which no size depends, and what is calculated with them.

    Tracing may have specialized a number, whose promise then has no symbol. So not only the symbols
    of sizes are compared, but each use of a number is checked, too.
    """
    sizes: set[Any] = set()
    for node in graph.nodes:
        sizes |= compat.symbols_of_sizes(compat.promise(node))
    free: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if _is_calculated(node, free) and sizes.isdisjoint(compat.symbols(compat.promise(node))):
            free[node] = None
    settled = False
    while not settled:
        settled = True
        for node in reversed(list(free)):
            calculated = node.op == "placeholder" or all(
                item in free for item in node.all_input_nodes
            )
            if not calculated or not all(_may_read(user, node, free) for user in node.users):
                del free[node]
                settled = False
    return list(free)


def _may_read(user: fx.Node, number: fx.Node, free: Container[fx.Node]) -> bool:
    """Whether a user of a number is lifted too, returns it, or can read a 0-d tensor instead."""
    return user in free or user.op == "output" or use_of(user, number) is not None


def _is_calculated(node: fx.Node, free: Container[fx.Node]) -> bool:
    if node.op == "placeholder":
        return _is_given_number(node) and not compat.is_ragged(compat.promise(node))
    inputs = node.all_input_nodes
    by_python = nodes.is_size_computation(node) or nodes.is_check(node)
    return by_python and bool(inputs) and all(item in free for item in inputs)


def use_of(node: fx.Node, number: fx.Node) -> NumberUse | None:
    """How a node can read a 0-d tensor in the place of a number; None where it cannot."""
    name = compat.operator_name(node.target) or ""
    promise = compat.promise(node)
    mentions: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), mentions.append)
    if mentions.count(number) != 1:
        return None
    if name == "aten.full_like.default" and (
        compat.is_symbolic(promise) or not promise.is_contiguous()
    ):
        return None
    if name in _FILLS:
        return NumberUse(promise.dtype, None) if node.args[_FILLS[name]] is number else None
    if _argument(node, number) in registry.taken_as_values(name):
        if name.endswith("randint_like.low_dtype") and not _has_room(node):
            return None
        is_float = isinstance(compat.promise(number), torch.SymFloat)
        return NumberUse(torch.float64 if is_float else torch.int64, name, "parameter")
    overload = _ARITHMETIC.get(name) or _COMPARISONS.get(name) or _WHOLE.get(name)
    if overload is None or len(node.args) != 2 or number not in node.args:
        return None
    other = next(item for item in node.args if item is not number)
    if isinstance(other, fx.Node) and not isinstance(compat.promise(other), torch.Tensor):
        # An operator called on two numbers: nothing says what element type it computes in.
        return None
    if name in _COMPARISONS:
        kind = 0.0 if isinstance(compat.promise(number), torch.SymFloat) else 0
        assert isinstance(other, fx.Node)
        dtype = torch.result_type(compat.promise(other), kind)
    else:
        dtype = promise.dtype
    if name.startswith("aten.pow") and not dtype.is_floating_point:
        return None
    if dtype in _ROUNDED and name.startswith("aten.pow"):
        return None
    divides_integers = name.startswith(_DIVIDING) and not dtype.is_floating_point
    if divides_integers:
        divisor = compat.promise(number)
        if node.args[0] is number or not compat.is_always(divisor != 0):
            return None
    if dtype in _ROUNDED and (name in _ARITHMETIC or name in _WHOLE):
        if not isinstance(other, fx.Node) or not compat.promise(other).dim():
            # With a 0-d tensor of float32, its result would be one.
            return None
        dtype = torch.float32
    beside = compat.promise(other).dtype if isinstance(other, fx.Node) else None
    return NumberUse(dtype, overload, "divisor" if divides_integers else "operand", beside)


def _has_room(node: fx.Node) -> bool:
    """Whether there are random integers between limits in any call; else PyTorch raises."""
    low, high = (
        compat.promise(item) if isinstance(item, fx.Node) else item for item in node.args[-2:]
    )
    return compat.is_always(high > low)  # type: ignore[operator]


def _argument(node: fx.Node, number: fx.Node) -> str | None:
    """The name of the argument of an operator that a number is, or is in."""
    if not isinstance(node.target, OpOverload):
        return None
    for item, value in zip(node.target._schema.arguments, node.args, strict=False):
        if number in (value if isinstance(value, (list, tuple)) else (value,)):
            return str(item.name)
    return next((name for name, value in node.kwargs.items() if value is number), None)


def _calculation(free: Sequence[fx.Node], copies: dict[fx.Node, fx.Node]) -> fx.Graph:
    graph = fx.Graph()
    for node in free:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph


def _read_tensor(
    graph: fx.Graph, node: fx.Node, number: fx.Node, use: NumberUse, name: str
) -> None:
    """Make a node read a new placeholder, a 0-d tensor, instead of a number."""
    first = next(item for item in graph.nodes if item.op != "placeholder")
    with graph.inserting_before(first):
        tensor = graph.placeholder(name)
    tensor.meta["val"] = compat.fake_scalar(graph, use.dtype)
    if use.overload is not None:
        node.target = _overload(use.overload)
        node.replace_input_with(number, tensor)
        return
    name = compat.operator_name(node.target) or ""
    size = node.args[0] if name == "aten.full.default" else tuple(compat.promise(node).shape)
    with graph.inserting_before(node):
        spread = graph.call_function(_overload("aten.expand.default"), (tensor, size))
    spread.meta = dict(node.meta)
    # Filled tensors have memory of their own.
    node.target = _overload("aten.clone.default")
    node.args, node.kwargs = (spread,), {"memory_format": torch.contiguous_format}


def for_pytorch(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with numbers where operators of PyTorch take no 0-d tensors, as lowerings do."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    read = False
    for node in graph.nodes:
        taken = registry.taken_as_values(compat.operator_name(node.target) or "")
        for number in node.all_input_nodes if taken else ():
            if _argument(node, number) in taken and isinstance(
                compat.promise(number), torch.Tensor
            ):
                with graph.inserting_before(node):
                    value = graph.call_function(_overload(_NUMBER_OF), (number,))
                node.replace_input_with(number, value)
                read = True
    return fx.GraphModule(module, graph) if read else module


def _overload(name: str) -> OpOverload:
    found = compat.operator(name)
    assert found is not None
    return found
