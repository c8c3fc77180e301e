"""Compiles the ATen graphs of one Dynamo graph, and of operators on resident tensors.

The passes for unknown sizes come first. What they give is compiled as it is, or where sizes differ
from call to call, for the sizes that come (`pjrt_bridge.torch_interop.compiling`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from pjrt_bridge.mixed.records import GraphRecord, Ledger, SegmentRecord
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.precision import Precisions
from pjrt_bridge.torch_interop import compat, precision
from pjrt_bridge.torch_interop.bind.graphs import Before, Direct, PlainGraph, run
from pjrt_bridge.torch_interop.bind.sizes import is_symbolic
from pjrt_bridge.torch_interop.compiling import fallbacks
from pjrt_bridge.torch_interop.compiling.division import number_gradients
from pjrt_bridge.torch_interop.compiling.graphs import GraphCompiler
from pjrt_bridge.torch_interop.compiling.target import Target
from pjrt_bridge.torch_interop.ledger import LEDGER
from pjrt_bridge.torch_interop.meshes.constraint import check_sizes
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.passes.pipeline import PassContext, Rewritten, rewrite
from pjrt_bridge.torch_interop.placement.refusals import refused
from pjrt_bridge.torch_interop.placement.split import node_names, operators
from pjrt_bridge.torch_interop.saved import mark_saved, take_as_saved


class Compiler:
    """Compiles the ATen graphs of one Dynamo graph for one client.

    Args:
        client: of the plugin that runs them.
        options: the user's.
        division: see `GraphRecord.division`.
        ledger: of what is compiled, and of the warnings.
        settings: how exact products have to be; None: as torch's settings are now.

    Attributes:
        settings: see above. Graphs that are compiled later, such as backward, have the same.
    """

    def __init__(
        self,
        client: Client,
        options: BackendOptions,
        division: str | None = None,
        ledger: Ledger = LEDGER,
        settings: Precisions | None = None,
    ) -> None:
        self.settings = precision.settings() if settings is None else settings
        self._target = Target.of(client, options, ledger, self.settings)
        self._options = options
        self._division = division
        self._graphs = GraphCompiler(self._target)
        self._static: frozenset[int] = frozenset()
        self._entrance: Before | None = None
        self._inputs = 0
        self._undefined: compat.UndefinedGradients | None = None

    def traced_from(self, graph: fx.GraphModule) -> None:
        """Say which graph of Dynamo AOTAutograd is to trace."""
        self._undefined = compat.UndefinedGradients(graph.graph)

    def noting(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What AOTAutograd made; backward knows which gradients are undefined, if that matters."""
        return compiled if self._undefined is None else self._undefined.noting(compiled)

    def entrance(self, compiled: Callable[..., Any], inputs: int) -> Callable[..., Any]:
        """The function that Dynamo's code is to call: AOTAutograd's, or a fast path before it.

        Args:
            compiled: what AOTAutograd made.
            inputs: how many Dynamo's graph has. AOTAutograd gives its graph fewer where some are
                one tensor or lie in the same memory, and tensors of its own in their place.
        """
        if self._entrance is None or inputs != self._inputs:
            return compiled
        return self._entrance.before(compiled)

    def compile(
        self, kind: str, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[[list[Any]], Any]:
        """Compile one ATen graph into a boxed function.

        Args:
            kind: `"inference"`, `"forward"` or `"backward"`.
            graph: functional but for the new values of arguments at its end.
            example_inputs: of a backward graph with the strides that forward gives; else not used,
                as the graph holds what is known of its inputs.

        Raises:
            FallbackForbidden: it cannot run on the device, and the host is forbidden.
            ProgramError: a constraint of a dimension that does not divide over its mesh.
        """
        check_sizes(graph.graph)
        compat.drop_traced_tokens(graph.graph)
        compat.renew_views(graph.graph)
        if kind == "backward":
            number_gradients(graph.graph)
            take_as_saved(graph.graph, example_inputs)
            static = compat.saved_inputs(graph.graph, self._static)
        else:
            static = compat.static_inputs()
            if not self._target.client.shares_host_memory:
                # A copy on the device could not be known to be old.
                static -= compat.parts_of_subclasses(graph.graph)
            self._static = static
            compat.donate_nothing()
            if self._undefined is not None and self._undefined.matter:
                self._undefined.results = compat.differentiated_results()
        returned = compat.returned(kind)
        results = graph.graph.output_node().args[0]
        assert isinstance(results, (list, tuple))
        if returned.visible is not None and not is_symbolic(graph.graph):
            mark_saved(graph.graph, returned.visible)
        context = PassContext(
            kind,
            returned=returned,
            orders=self._options.orders(),
            keeps=self._options.wants_on_host,
            refused=refused,
            check_indices=self._options.check_indices is True,
            kernels=self._target.kernels,
            devices=self._target.devices,
        )
        rewritten = rewrite(graph, context, "unsized")
        record = GraphRecord(
            kind, kind, self._target.plugin, code=compat.compile_id(), division=self._division
        )
        start: Callable[[list[Any]], Any]
        if is_symbolic(rewritten.module.graph):
            start = self._graphs.compile_symbolic(rewritten.module, record, static).run
        else:
            self._inputs = len(graph.graph.find_nodes(op="placeholder"))
            compiled = self._graphs.compile(rewritten.module, record, static)
            if kind == "forward":
                compat.report_strides(len(results), self._graphs.saved)
            start = partial(run, compiled)
            if (
                kind == "inference"
                and isinstance(compiled, Direct)
                and not rewritten.steps
                and compat.passes_through(self._inputs)
            ):
                self._entrance = compiled.fast_path()
        made = compat.boxed(partial(rewritten.call, start) if rewritten.steps else start)
        if kind != "backward":
            return made
        made = compat.unless_batched(made, graph)
        if self._undefined is None or self._undefined.results is None:
            return made
        return compat.boxed(self._undefined.backward(made))

    def leave_to_pytorch(
        self, graph: fx.GraphModule, inputs: Sequence[Any], reason: FallbackReason
    ) -> Callable[..., Any]:
        """Have PyTorch run a Dynamo graph that AOTAutograd cannot make functional.

        Args:
            graph: the graph.
            inputs: its (fake) inputs.
            reason: what it cannot.

        Raises:
            FallbackForbidden: the user's options forbid the host.
        """
        trained = torch.is_grad_enabled() and any(
            isinstance(item, torch.Tensor) and item.requires_grad for item in inputs
        )
        kind = "forward" if trained else "inference"
        record = GraphRecord(
            kind, kind, self._target.plugin, code=compat.compile_id(), division=self._division
        )
        names = node_names(graph.graph)
        record.segments.append(SegmentRecord("host", operators(graph.graph), names, [reason]))
        fallbacks.tell(self._target, record, f"the {kind} graph", [reason])
        self._target.ledger.add(record)
        return self._options.orders().around(graph)

    def prepare_joint(self, graph: fx.GraphModule) -> None:
        """Rewrite a joint graph in place, before it is divided into forward and backward."""
        if self._undefined is not None:
            self._undefined.look_at(graph.graph)
        context = PassContext(
            "joint",
            keeps=self._options.wants_on_host,
            refused=refused,
            kernels=self._target.kernels,
            devices=self._target.devices,
        )
        rewrite(graph, context, "joint")

    # -- operators on resident tensors -------------------------------------------------------------

    def rewrite_call(
        self, graph: fx.GraphModule, kind: str
    ) -> tuple[fx.GraphModule, tuple[Rewritten, ...]]:
        """Apply the passes to the graph of an operator that is called on resident tensors.

        Args:
            graph: functional, over arrays that lie in order; it has known sizes.
            kind: see `compile`.

        Returns:
            The graph, and what leads to its calls, the first to be called first.
        """
        context = PassContext(
            kind,
            returned=compat.Returned(inference=True),
            refused=refused,
            check_indices=self._options.check_indices is True,
        )
        first = rewrite(graph, context, "unsized")
        second = rewrite(first.module, context, "sized")
        return second.module, (first, second)

    def compile_rewritten(
        self, graph: fx.GraphModule, record: GraphRecord, index: int, *, divides: bool = False
    ) -> PlainGraph:
        """Compile a graph that `rewrite_call` gave, or several as one.

        Args:
            graph: see above.
            record: of the graph.
            index: of the device.
            divides: for values over a mesh, instead of a device.
        """
        target = self._target.for_device(NAME, index)
        compiler = GraphCompiler((target.over_mesh() if divides else target).of_operators())
        return compiler.compile_rewritten(graph, record)

    def lowers(self, graph: fx.GraphModule) -> bool:
        """Whether all of a graph can be on the device."""
        return self.first_refusal(graph) is None

    def first_refusal(self, graph: fx.GraphModule) -> str | None:
        """Why some of a graph cannot be on the device; None where all of it can."""
        reasons = self._target.placement().fallback_reasons(graph.graph).values()
        return next(map(str, reasons), None)
