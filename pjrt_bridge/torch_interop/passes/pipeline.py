"""The passes over ATen graphs, in one ordered list, for the backend and for exported models.

A pass changes a graph in place, or gives another graph of the same arguments and results, or a
`Step`: another graph, with what happens to the arguments of each call before it (the prologue) and
to its results after it (the epilogue).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from torch import fx

from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.named_device.naming import OWN_DEVICES
from pjrt_bridge.torch_interop.nodes import split_products
from pjrt_bridge.torch_interop.passes.aliases.detached import remove_detached
from pjrt_bridge.torch_interop.passes.aliases.gaps import find_gaps
from pjrt_bridge.torch_interop.passes.aliases.resolve import resolve_aliases
from pjrt_bridge.torch_interop.passes.aliases.storages import address_whole_storages
from pjrt_bridge.torch_interop.passes.aliases.strided_views import view_whole_tensors
from pjrt_bridge.torch_interop.passes.attention import join_attention
from pjrt_bridge.torch_interop.passes.causal_masks import recognize_causal_masks
from pjrt_bridge.torch_interop.passes.composites import collect_composites, remove_marks
from pjrt_bridge.torch_interop.passes.data_checks import check_data
from pjrt_bridge.torch_interop.passes.defer_assertions import defer_assertions
from pjrt_bridge.torch_interop.passes.equal_bags import sum_equal_bags
from pjrt_bridge.torch_interop.passes.fills import fill_by_sizes
from pjrt_bridge.torch_interop.passes.flex_attention import decompose_flex_attention
from pjrt_bridge.torch_interop.passes.functionalize_rng import (
    DrawnKeys,
    Refused,
    functionalize_rng,
    lift_keys,
)
from pjrt_bridge.torch_interop.passes.layouts import Orders
from pjrt_bridge.torch_interop.passes.lift_scalars import lift_scalars
from pjrt_bridge.torch_interop.passes.log_softmax import recompute_log_softmax
from pjrt_bridge.torch_interop.passes.merge_equal_calls import merge_equal_calls
from pjrt_bridge.torch_interop.passes.proven_assertions import remove_proven_assertions
from pjrt_bridge.torch_interop.passes.sections.section import READS, WRITES
from pjrt_bridge.torch_interop.passes.sections.summed import ADD, join_summed_sections
from pjrt_bridge.torch_interop.passes.sections.written import join_written_sections

Stage = Literal["joint", "unsized", "sized"]
"""To which graphs a pass is applied:

- joint: those of a training step, before they are divided into forward and backward;
- unsized: all others, whose sizes may not be known yet;
- sized: the same, once sizes are known.
"""


class Step(Protocol):
    """A graph that a pass made of another, and what leads from calls of that to calls of it."""

    @property
    def module(self) -> fx.GraphModule:
        """The graph."""

    def prologue(self, arguments: list[Any]) -> Any:
        """Change the arguments of a call, in place; what the epilogue needs to know."""

    def epilogue(self, state: Any, outputs: list[Any]) -> list[Any]:
        """The results of the graph before, from those of this graph."""


@dataclass(frozen=True)
class PassContext:
    """Settings of the passes, for one graph.

    Attributes:
        kind: of the graph: `"joint"`, `"inference"`, `"forward"`, `"backward"` or `"exported"`.
        returned: what AOTAutograd promises of the results; None of an exported model.
        orders: the layouts that the user asks for, if any.
        keeps: says of a random operator's name that PyTorch runs it.
        refused: random operators that PyTorch refuses, see `placement/refusals.py`.
        check_indices: check positions and integer divisors.
        kernels: of the target: composites and attention that it computes in its own way.
        devices: torch's types of those whose tensors programs take.
    """

    kind: str
    returned: compat.Returned | None = None
    orders: Orders | None = None
    keeps: Callable[[str], bool] = lambda name: False
    refused: Refused = lambda *_: False
    check_indices: bool = False
    kernels: Kernels = field(default_factory=Kernels)
    devices: Container[str] = OWN_DEVICES


@dataclass(frozen=True)
class Rewritten:
    """A graph that passes rewrote.

    Attributes:
        module: the graph.
        steps: what leads from calls of the original graph to calls of it, in order.
    """

    module: fx.GraphModule
    steps: tuple[Step, ...] = ()

    def call(self, run: Callable[[list[Any]], Sequence[Any]], arguments: list[Any]) -> list[Any]:
        """The results of the original graph; `run` is given the arguments of the rewritten one."""
        states = [step.prologue(arguments) for step in self.steps]
        outputs = list(run(arguments))
        for step, state in zip(reversed(self.steps), reversed(states), strict=True):
            outputs = step.epilogue(state, outputs)
        return outputs


# -- the list --------------------------------------------------------------------------------------


def _lay_out_results(module: fx.GraphModule, context: PassContext) -> None:
    if context.orders is not None and context.kind != "backward":
        assert context.returned is not None
        context.orders.lay_out_results(module.graph, context.returned.visible)


def _functionalize_rng(module: fx.GraphModule, context: PassContext) -> None:
    # Forward and backward graphs got their keys in the joint graph.
    if context.kind in ("joint", "inference", "exported"):
        functionalize_rng(module.graph, context.keeps, context.refused, context.devices)


def _remove_marks(module: fx.GraphModule, context: PassContext) -> None:
    remove_marks(module, context.kernels.takes)


def _collect_composites(module: fx.GraphModule, context: PassContext) -> None:
    collect_composites(module, context.kernels.takes)


def _remove_detached(module: fx.GraphModule, context: PassContext) -> None:
    remove_detached(module.graph)


def _view_whole_tensors(module: fx.GraphModule, context: PassContext) -> None:
    view_whole_tensors(module.graph)


def _merge_equal_calls(module: fx.GraphModule, context: PassContext) -> None:
    merge_equal_calls(module.graph)


def _fill_by_sizes(module: fx.GraphModule, context: PassContext) -> None:
    fill_by_sizes(module.graph)


def _join_attention(module: fx.GraphModule, context: PassContext) -> None:
    join_attention(module.graph, context.kernels, context.keeps)


def _recognize_causal_masks(module: fx.GraphModule, context: PassContext) -> None:
    recognize_causal_masks(module.graph)


def _recompute_log_softmax(module: fx.GraphModule, context: PassContext) -> None:
    recompute_log_softmax(module.graph, context.keeps)


def _sum_equal_bags(module: fx.GraphModule, context: PassContext) -> None:
    sum_equal_bags(module.graph, context.keeps)


def _join_sections(module: fx.GraphModule, context: PassContext) -> None:
    if not any(map(context.keeps, (*READS, *WRITES, ADD))):
        join_summed_sections(module.graph)
        join_written_sections(module.graph)


def _lift_keys(module: fx.GraphModule, context: PassContext) -> Step | None:
    count = lift_keys(module.graph)
    if not count:
        return None
    module.recompile()
    return DrawnKeys(module, count)


def _split_products(module: fx.GraphModule, context: PassContext) -> None:
    split_products(module.graph)


def _lift_scalars(module: fx.GraphModule, context: PassContext) -> Step | None:
    return lift_scalars(module)


def _resolve_aliases(module: fx.GraphModule, context: PassContext) -> Step | None:
    assert context.returned is not None
    return resolve_aliases(module, context.returned)


def _decompose_flex_attention(
    module: fx.GraphModule, context: PassContext
) -> fx.GraphModule | None:
    return decompose_flex_attention(module, context.keeps)


def _address_whole_storages(module: fx.GraphModule, context: PassContext) -> None:
    address_whole_storages(module)


def _check_data(module: fx.GraphModule, context: PassContext) -> fx.GraphModule | None:
    # A backward graph computes with the positions of its forward graph.
    if context.kind == "backward":
        return None
    return check_data(module, indices=context.check_indices)


def _find_gaps(module: fx.GraphModule, context: PassContext) -> Step | None:
    return find_gaps(module)


def _remove_proven_assertions(module: fx.GraphModule, context: PassContext) -> None:
    remove_proven_assertions(module)


def _defer_assertions(module: fx.GraphModule, context: PassContext) -> Step | None:
    return defer_assertions(module, exported=context.kind == "exported")


class Pass(NamedTuple):
    """A pass, and where it is applied.

    Attributes:
        apply: changes a graph in place and gives None, or gives another graph of the same
            arguments and results, or a step.
        stage: to which graphs.
        exports: also to graphs of exported models. Those have no numbers that change, and their
            results share no memory.
    """

    apply: Callable[[fx.GraphModule, PassContext], Step | fx.GraphModule | None]
    stage: Stage
    exports: bool


PASSES = (
    # Before others look at operators that are in the way, or change what is between marks.
    Pass(_remove_detached, "joint", exports=False),
    Pass(_remove_marks, "joint", exports=False),
    Pass(_functionalize_rng, "joint", exports=False),
    Pass(_fill_by_sizes, "joint", exports=False),
    Pass(_view_whole_tensors, "joint", exports=False),
    Pass(_merge_equal_calls, "joint", exports=False),
    Pass(_join_attention, "joint", exports=False),
    Pass(_recognize_causal_masks, "joint", exports=False),
    Pass(_recompute_log_softmax, "joint", exports=False),
    # Here a joint graph is divided.
    Pass(_remove_detached, "unsized", exports=False),
    Pass(_collect_composites, "unsized", exports=True),
    Pass(_lay_out_results, "unsized", exports=False),
    Pass(_functionalize_rng, "unsized", exports=True),
    Pass(_lift_keys, "unsized", exports=True),
    Pass(_split_products, "unsized", exports=True),
    Pass(_view_whole_tensors, "unsized", exports=True),
    Pass(_lift_scalars, "unsized", exports=False),
    Pass(_resolve_aliases, "unsized", exports=False),
    # Here the sizes of a call are padded (`padding/`) and put in (`substitute_sizes.py`).
    Pass(_join_attention, "sized", exports=False),
    Pass(_recognize_causal_masks, "sized", exports=False),
    Pass(_join_sections, "sized", exports=True),
    Pass(_sum_equal_bags, "sized", exports=True),
    Pass(_decompose_flex_attention, "sized", exports=True),
    Pass(_address_whole_storages, "sized", exports=True),
    Pass(_check_data, "sized", exports=True),
    Pass(_find_gaps, "sized", exports=False),
    Pass(_remove_proven_assertions, "sized", exports=True),
    Pass(_defer_assertions, "sized", exports=True),
)
"""In this order."""


def rewrite(module: fx.GraphModule, context: PassContext, stage: Stage) -> Rewritten:
    """Apply the passes.

    Args:
        module: a functional graph; may be changed in place.
        context: settings of the passes.
        stage: which of them.
    """
    steps: list[Step] = []
    for one in PASSES:
        if one.stage == stage and (one.exports or context.kind != "exported"):
            with compat.without_autocast():
                made = one.apply(module, context)
            if isinstance(made, fx.GraphModule):
                module = made
            elif made is not None:
                module = made.module
                steps.append(made)
    return Rewritten(module, tuple(steps))
