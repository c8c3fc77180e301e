"""From an ATen graph to one StableHLO program, and how arguments and results map to it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import fx

from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit.materialization import should_materialize
from pjrt_bridge.torch_interop.emit.node_lowering import (
    Lookup,
    has_contiguous_inputs,
    lower,
    tensor_types,
)
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.kernels import Kernels
from pjrt_bridge.torch_interop.nodes import COPY_INTO_INPUT, source_frame
from pjrt_bridge.torch_interop.tensors import Form, Result

_WORTH_DONATING = 1 << 16
"""Bytes. Smaller ones are copied as fast, and PyTorch can still read them if the device fails."""


@dataclass(frozen=True)
class Argument:
    """A graph output that is one of the graph's arguments, handed back as it is."""

    position: int


@dataclass(frozen=True)
class Computed:
    """A graph output that is a result of the program, by index."""

    result: int


@dataclass(frozen=True)
class Constant:
    """A graph output that the program does not compute: None or a number."""

    value: Any


@dataclass(frozen=True)
class Emitted:
    """A program and how a call of the graph maps to it.

    Attributes:
        program: takes tensor arguments in graph order, then `captured`.
        inputs: for each parameter that is an argument, its position and form; arguments that the
            program does not read are no parameters.
        captured: tensors that the graph holds itself, and their forms.
        results: the tensors that the program's results become.
        outputs: what each graph output is.
        mutations: (position of an argument, index of the result that becomes its new value).
        written: positions of those among them whose memory the program writes into, if the plugin
            uses it in place.
    """

    program: Program
    inputs: tuple[tuple[int, Form], ...]
    captured: tuple[tuple[torch.Tensor, Form], ...]
    results: tuple[Result, ...]
    outputs: tuple[Argument | Computed | Constant, ...]
    mutations: tuple[tuple[int, int], ...]
    written: frozenset[int]


def emit(
    module: fx.GraphModule,
    lookup: Lookup,
    *,
    name: str,
    in_place: bool = False,
    forms: Mapping[int, Callable[[Form], Form]] | None = None,
    result_of: Callable[[torch.Tensor], Result] = Result.of,
    constants: Mapping[int, ArrayLike] | None = None,
    kernels: Kernels | None = None,
    excess_precision: bool = False,
) -> Emitted:
    """Emit a whole graph, of which every node lowers.

    Args:
        module: the graph.
        lookup: finds lowerings.
        name: of the program.
        in_place: donate larger arguments that get new values to these.
        forms: for positions of arguments, in what form these cross instead of their own.
        result_of: in what form the promised results cross.
        constants: values of arguments, by position, that become part of the program.
        kernels: materialize values; the portable ones by default.
        excess_precision: round half precision where a chain of operators ends.

    Raises:
        NotLowerable: a node does not lower after all.
        UnsupportedDtype: an argument's element type has no PJRT counterpart.
    """
    return _Emission(
        module,
        lookup,
        name,
        in_place,
        forms or {},
        result_of,
        constants or {},
        kernels or Kernels(),
        excess_precision,
    ).run()


class _Emission:
    def __init__(
        self,
        module: fx.GraphModule,
        lookup: Lookup,
        name: str,
        in_place: bool,
        forms_of: Mapping[int, Callable[[Form], Form]],
        result_of: Callable[[torch.Tensor], Result],
        constants: Mapping[int, ArrayLike],
        kernels: Kernels,
        excess_precision: bool,
    ) -> None:
        nodes = list(module.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        tensors = [
            (position, node)
            for position, node in enumerate(placeholders)
            if isinstance(compat.promise(node), torch.Tensor)
            and _is_read(node)
            and position not in constants
        ]
        held = {node: compat.promise(node) for node in nodes if node.op == "get_attr"}
        attributes = [node for node, value in held.items() if isinstance(value, torch.Tensor)]
        self._nodes = nodes
        self._lookup = lookup
        self._kernels = kernels
        self._positions = {node: position for position, node in enumerate(placeholders)}
        self._inputs = tuple(
            (at, forms_of.get(at, _unchanged)(Form.of(compat.promise(node))))
            for at, node in tensors
        )
        self._captured = tuple((held[node], Form.of(held[node])) for node in attributes)
        forms = [form for _, form in (*self._inputs, *self._captured)]
        self._builder = Builder(
            [form.dense for form in forms], name=name, excess_precision=excess_precision
        )
        self._values: dict[fx.Node, Any] = {node: compat.promise(node) for node in placeholders}
        self._values |= held
        for position, constant in constants.items():
            self._values[placeholders[position]] = self._builder.constant(constant)
        sources = [*(node for _, node in tensors), *attributes]
        for node, form, value in zip(sources, forms, self._builder.parameters, strict=True):
            self._values[node] = self._permuted(value, form.order and form.inverse)
        self._results: list[tuple[Value, Result]] = []
        self._computed: dict[fx.Node, Computed] = {}
        self._mutations: list[tuple[int, int]] = []
        self._in_place = in_place
        self._result_of = result_of
        self._written: set[int] = set()

    def run(self) -> Emitted:
        outputs: tuple[Argument | Computed | Constant, ...] = ()
        for node in self._nodes:
            if node.op == "call_function":
                with self._located(node):
                    self._call(node)
            elif node.op == "output":
                outputs = tuple(self._output(item) for item in node.args[0])
        return Emitted(
            program=self._builder.finish([value for value, _ in self._results]),
            inputs=self._inputs,
            captured=self._captured,
            results=tuple(result for _, result in self._results),
            outputs=outputs,
            mutations=tuple(self._mutations),
            written=frozenset(self._written),
        )

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            self._values[node] = self._materialized(node, self._values[source][index])
            return
        if compat.operator_name(node.target) == COPY_INTO_INPUT:
            self._mutate(node)
            return
        args, kwargs = compat.substitute((node.args, node.kwargs), self._values)
        value = lower(
            self._builder,
            self._lookup,
            node,
            args,
            kwargs,
            tensor_types(compat.promise(node)),
            has_contiguous_inputs(node),
        )
        self._values[node] = self._materialized(node, value)

    def _materialized(self, node: fx.Node, value: Any) -> Any:
        return (
            self._kernels.materialize(self._builder, value) if should_materialize(node) else value
        )

    def _mutate(self, node: fx.Node) -> None:
        target, source = node.args[:2]
        assert isinstance(target, fx.Node)
        assert isinstance(source, fx.Node)
        promise = compat.promise(target)
        copy = self._lookup("aten.copy.default")
        assert copy is not None
        context = Context(self._builder, tensor_types(promise))
        value = copy(context, self._values[target], self._values[source])
        assert isinstance(value, Value)
        position = self._positions[target]
        result = self._result(value, promise)
        self._mutations.append((position, result))
        for parameter, (at, form) in enumerate(self._inputs):
            same = at == position and form == self._results[result][1].form
            if self._in_place and same and form.type.nbytes >= _WORTH_DONATING:
                self._builder.donate(parameter, result)
                self._written.add(position)
        # Users of the copy operation read the argument after the mutation.
        self._positions[node] = position

    def _output(self, item: Any) -> Argument | Computed | Constant:
        if not isinstance(item, fx.Node):
            return Constant(item)
        if item in self._positions:
            return Argument(self._positions[item])
        value = self._values[item]
        if not isinstance(value, Value):
            return Constant(value)
        # A node that is several outputs (the user's, and saved for backward) is one result.
        if item not in self._computed:
            self._computed[item] = Computed(self._result(value, compat.promise(item)))
        return self._computed[item]

    def _result(self, value: Value, promise: torch.Tensor) -> int:
        """Make a value a result of the program, in the form of its tensor; returns its index."""
        result = self._result_of(promise)
        once = result.form.type.shape
        if once != value.shape:
            value = self._builder.slice(value, (0,) * len(once), once, (1,) * len(once))
        self._results.append((self._permuted(value, result.form.order), result))
        return len(self._results) - 1

    def _permuted(self, value: Value, order: tuple[int, ...] | None) -> Value:
        return value if order is None else self._builder.transpose(value, order)

    @contextmanager
    def _located(self, node: fx.Node) -> Iterator[None]:
        frame = source_frame(node)
        if frame is None:
            yield
            return
        with self._builder.location(frame[0], frame[1], node.name):
            yield


def _unchanged(form: Form) -> Form:
    return form


def _is_read(node: fx.Node) -> bool:
    # An effect token is a tensor in the graph, and None in a call.
    return any(user.op != "output" for user in node.users)
