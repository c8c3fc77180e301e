"""Emits an ATen graph as one StableHLO program, with its bindings."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import fx

from pjrt_bridge.mixed.adapter import Bindings, Computed, Constant, SegmentInput
from pjrt_bridge.runtime.dispatch.plans import BoundParameter
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.stablehlo import Builder, memory_order
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns import finishing
from pjrt_bridge.stablehlo.precision import Precisions
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit.materialization import (
    is_large_elementwise,
    is_normalized_by_rows,
    recomputed,
    should_materialize,
)
from pjrt_bridge.torch_interop.emit.node_lowering import (
    Lookup,
    lower,
    order_of_input,
    tensor_types,
)
from pjrt_bridge.torch_interop.emit.norms import emit_norm, find_norms
from pjrt_bridge.torch_interop.emit.positions import PositionChecks
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.nodes import COPY_INTO_INPUT, source_frame
from pjrt_bridge.torch_interop.saved import saved_position
from pjrt_bridge.torch_interop.tensors import argument_spec, result_spec

_WORTH_DONATING = 1 << 16
"""Bytes. Smaller ones are copied as fast, and PyTorch can still read them if the device fails."""


@dataclass(frozen=True)
class Emitted:
    """A program and how a call of the graph maps to it.

    Attributes:
        program: takes tensor arguments in graph order, then `captured`; arguments that it does not
            read are no parameters.
        bindings: what its parameters and results are; none is pinned.
        captured: tensors that the graph holds itself: of the parameters without a position.
        kernels_version: of the kernels when it was begun.
        saved: strides of the results that only backward reads, where they lie otherwise than
            promised; by position in the graph before any pass.
        took_precisions: its products depend on the precisions that it was emitted with.
        checks_data: it may fail because of the elements that it is given.
    """

    program: Program
    bindings: Bindings
    captured: tuple[torch.Tensor, ...]
    kernels_version: int = 0
    saved: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    took_precisions: bool = False
    checks_data: bool = False

    def takes_as(self, other: Emitted) -> bool:
        """Whether it takes and gives the same as another program of the graph.

        Other kernels may read other arguments.
        """
        mine, others = self.bindings, other.bindings
        return (
            list(mine.parameters) == list(others.parameters)
            and list(mine.results) == list(others.results)
            and list(map(id, self.captured)) == list(map(id, other.captured))
        )

    @property
    def inputs(self) -> tuple[int, ...]:
        """Positions of the graph's arguments that are parameters of the program."""
        found = (parameter.position for parameter in self.bindings.parameters)
        return tuple(position for position in found if position is not None)

    @property
    def captured_specs(self) -> tuple[ValueSpec, ...]:
        """The value specs of the captured tensors."""
        return tuple(
            parameter.spec for parameter in self.bindings.parameters if parameter.position is None
        )


def emit(
    module: fx.GraphModule,
    lookup: Lookup,
    *,
    name: str,
    in_place: bool = False,
    argument_specs: Mapping[int, Callable[[torch.Tensor], ValueSpec]] | None = None,
    result_spec: Callable[[torch.Tensor], ValueSpec] = result_spec,
    constants: Mapping[int, ArrayLike] | None = None,
    kernels: Kernels | None = None,
    excess_precision: bool = False,
    precisions: Precisions | None = None,
    checks_positions: bool = False,
    orders_saved: bool = False,
    like: Emitted | None = None,
) -> Emitted:
    """Emit a whole graph, of which every node lowers.

    Args:
        module: the graph.
        lookup: finds lowerings.
        name: of the program.
        in_place: donate larger arguments that get new values to these.
        argument_specs: for positions of arguments, how these cross; others as they lie.
        result_spec: how the promised results cross.
        constants: values of arguments, by position, that become part of the program.
        kernels: materialize values; the portable ones by default.
        excess_precision: round half precision where a chain of operators ends.
        precisions: see `Builder`.
        checks_positions: indices that are out of range make the program fail, where the kernels
            can check that.
        orders_saved: results that only backward reads lie as the compiler is expected to have them.
        like: what was emitted before, whose results these are to lie like.

    Raises:
        NotLowerable: a node does not lower after all.
        UnsupportedDtype: an argument's element type has no PJRT counterpart.
    """
    return _GraphEmission(
        module,
        lookup,
        name,
        in_place,
        argument_specs or {},
        result_spec,
        constants or {},
        kernels or Kernels(),
        excess_precision,
        precisions,
        checks_positions,
        orders_saved,
        like,
    ).run()


class _GraphEmission:
    def __init__(
        self,
        module: fx.GraphModule,
        lookup: Lookup,
        name: str,
        in_place: bool,
        argument_specs: Mapping[int, Callable[[torch.Tensor], ValueSpec]],
        result_spec: Callable[[torch.Tensor], ValueSpec],
        constants: Mapping[int, ArrayLike],
        kernels: Kernels,
        excess_precision: bool,
        precisions: Precisions | None,
        checks_positions: bool,
        orders_saved: bool,
        like: Emitted | None,
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
            (at, argument_specs.get(at, argument_spec)(compat.promise(node)))
            for at, node in tensors
        )
        self._parameters = {at: parameter for parameter, (at, _) in enumerate(self._inputs)}
        self._captured = tuple(held[node] for node in attributes)
        captured = [argument_spec(tensor) for tensor in self._captured]
        self._captured_specs = captured
        specs = [*(spec for _, spec in self._inputs), *captured]
        self._builder = Builder(
            [spec.memory for spec in specs],
            name=name,
            excess_precision=excess_precision,
            precisions=precisions,
            functions=kernels.functions,
            finishing=finishing(kernels),
        )
        self._values: dict[fx.Node, Any] = {node: compat.promise(node) for node in placeholders}
        self._values |= held
        for position, constant in constants.items():
            self._values[placeholders[position]] = self._builder.constant(constant)
        sources = [*(node for _, node in tensors), *attributes]
        for node, spec, value in zip(sources, specs, self._builder.parameters, strict=True):
            self._values[node] = self._permuted(value, spec.inverse)
        self._results: list[tuple[Value, ValueSpec]] = []
        self._computed: dict[fx.Node, Computed] = {}
        self._updates: list[tuple[SegmentInput, int]] = []
        self._in_place = in_place
        self._recomputed = recomputed(module.graph)
        self._norms = {found.nodes[-1]: found for found in find_norms(module.graph)}
        self._held = {node for found in self._norms.values() for node in found.nodes[:-1]}
        self._checks = PositionChecks(self._builder, kernels) if checks_positions else None
        self._result_spec = result_spec
        self._written: set[int] = set()
        self._orders_saved = orders_saved
        self._like = like
        self._saved: dict[int, tuple[int, ...]] = {}

    def run(self) -> Emitted:
        version = self._kernels.version
        outputs: tuple[SegmentInput | Computed | Constant, ...] = ()
        for node in self._nodes:
            if node.op == "call_function":
                if node not in self._held:
                    self._call(node)
            elif node.op == "output":
                outputs = tuple(self._output(item) for item in node.args[0])
        parameters = [BoundParameter(at, spec, at in self._written) for at, spec in self._inputs]
        parameters += [BoundParameter(None, spec) for spec in self._captured_specs]
        return Emitted(
            program=self._builder.finish([value for value, _ in self._results]),
            bindings=Bindings(
                parameters=parameters,
                results=[spec for _, spec in self._results],
                outputs=outputs,
                updates=self._updates,
            ),
            captured=self._captured,
            kernels_version=version,
            saved=self._saved,
            took_precisions=self._builder.took_precisions,
            checks_data=self._builder.has_effects,
        )

    def _call(self, node: fx.Node) -> None:
        found = self._norms.get(node)
        with self._located(node):
            if found is not None:
                made = emit_norm(self._builder, self._kernels, found, self._values)
                self._values |= made
                if made:
                    return
        for held in () if found is None else found.nodes[:-1]:
            with self._located(held):
                self._lower(held)
        with self._located(node):
            self._lower(node)

    def _lower(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            self._values[node] = self._materialized(node, self._values[source][index])
            return
        if compat.operator_name(node.target) == COPY_INTO_INPUT:
            self._mutate(node)
            return
        values: Mapping[fx.Node, Any] = self._values
        if self._checks is not None:
            values = self._checks.arguments(node, values)
        args, kwargs = compat.substitute((node.args, node.kwargs), values)
        value = lower(
            self._builder,
            self._lookup,
            node,
            args,
            kwargs,
            tensor_types(compat.promise(node)),
            order_of_input(node),
        )
        self._values[node] = self._materialized(node, value)

    def _materialized(self, node: fx.Node, value: Any) -> Any:
        shared = node in self._recomputed or should_materialize(node)
        if shared or self._is_saved_across(node, value):
            by_rows = is_normalized_by_rows(node)
            return self._kernels.materialize(self._builder, value, by_rows=by_rows)
        return value

    def _is_saved_across(self, node: fx.Node, value: Any) -> bool:
        """Whether a result that only backward reads is elementwise, and lies across.

        It is written to memory anyway; a compiler may turn it to row-major and back before.
        """
        if not self._orders_saved or saved_position(node) is None or not is_large_elementwise(node):
            return False
        return isinstance(value, Value) and memory_order(value) != tuple(range(value.rank))

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
        result = self._result(value, self._result_spec(promise))
        self._updates.append((SegmentInput(position), result))
        parameter = self._parameters.get(position)
        if self._in_place and parameter is not None:
            spec = self._inputs[parameter][1]
            if spec.nbytes >= _WORTH_DONATING and spec.lies_as(self._results[result][1]):
                self._builder.donate(parameter, result)
                self._written.add(position)
        # Users of the copy operation read the argument after the mutation.
        self._positions[node] = position

    def _output(self, item: Any) -> SegmentInput | Computed | Constant:
        if not isinstance(item, fx.Node):
            return Constant(item)
        if item in self._positions:
            return SegmentInput(self._positions[item])
        value = self._values[item]
        if not isinstance(value, Value):
            return Constant(value)
        # A node that is several outputs (the user's, and saved for backward) is one result.
        if item not in self._computed:
            self._computed[item] = Computed(self._result(value, self._spec(item, value)))
        return self._computed[item]

    def _spec(self, node: fx.Node, value: Value) -> ValueSpec:
        """The value spec of a node's value as a result."""
        promised = self._result_spec(compat.promise(node))
        position = saved_position(node) if self._orders_saved else None
        if position is None:
            return promised
        if self._like is None:
            spec = ValueSpec.ordered(promised.type, memory_order(value))
        else:
            spec = self._like.bindings.results[len(self._results)]
        if spec != promised:
            self._saved[position] = spec.strides
        return spec

    def _result(self, value: Value, spec: ValueSpec) -> int:
        """Return a value from the program, as the memory of its tensor has it; the index."""
        once = spec.once.shape
        if once != value.shape:
            value = self._builder.slice(value, (0,) * len(once), once, (1,) * len(once))
        self._results.append((self._permuted(value, spec.order), spec))
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


def _is_read(node: fx.Node) -> bool:
    # An effect token is a tensor in the graph, and None in a call.
    return any(user.op != "output" for user in node.users)
