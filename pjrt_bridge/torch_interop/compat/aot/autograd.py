"""AOTAutograd: from a graph of Dynamo to graphs of ATen, with what it knows of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import fx
from torch._decomp import _core_aten_decompositions_post_autograd
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from pjrt_bridge.torch_interop.compat.aot.flex import flex_decompositions
from pjrt_bridge.torch_interop.compat.aot.overlapping import (
    WrittenArguments,
    guard_places,
    watched_arguments,
)
from pjrt_bridge.torch_interop.compat.aot.overlapping_tangents import keep_tangents_apart
from pjrt_bridge.torch_interop.compat.aot.repeated_views import keep_places_of_views
from pjrt_bridge.torch_interop.compat.aot.returned_arguments import keep_places_of_results
from pjrt_bridge.torch_interop.compat.decomposed.accelerator_attention import CHOOSING
from pjrt_bridge.torch_interop.compat.decomposed.accelerators import (
    accelerator_decompositions,
    portable_kernels,
)
from pjrt_bridge.torch_interop.compat.decomposed.activations import activation_decompositions
from pjrt_bridge.torch_interop.compat.decomposed.changing_numbers import (
    number_decompositions,
    numbers_in_expressions,
)
from pjrt_bridge.torch_interop.compat.decomposed.checks import checks_kept
from pjrt_bridge.torch_interop.compat.decomposed.empty_images import empty_image_decompositions
from pjrt_bridge.torch_interop.compat.decomposed.encoder_layers import (
    encoder_layer_decompositions,
)
from pjrt_bridge.torch_interop.compat.decomposed.filling import filling_decompositions
from pjrt_bridge.torch_interop.compat.decomposed.fused_cells import fused_cell_decompositions
from pjrt_bridge.torch_interop.compat.decomposed.fused_steps import (
    fused_step_decompositions,
    replace_fused_steps,
)
from pjrt_bridge.torch_interop.compat.decomposed.integer_draws import draw_decompositions
from pjrt_bridge.torch_interop.compat.decomposed.interpolation import interpolation_decompositions
from pjrt_bridge.torch_interop.compat.decomposed.jagged import jagged_decompositions
from pjrt_bridge.torch_interop.compat.decomposed.lists import list_decompositions
from pjrt_bridge.torch_interop.compat.decomposed.loss_scaling import loss_scaling_decompositions
from pjrt_bridge.torch_interop.compat.decomposed.losses import loss_decompositions
from pjrt_bridge.torch_interop.compat.decomposed.membership import membership_decompositions
from pjrt_bridge.torch_interop.compat.decomposed.memory_orders import with_memory_orders
from pjrt_bridge.torch_interop.compat.decomposed.quantized import quantized_decompositions
from pjrt_bridge.torch_interop.compat.decomposed.refused_positions import with_refused_positions
from pjrt_bridge.torch_interop.compat.decomposed.value_ranges import with_value_checks
from pjrt_bridge.torch_interop.compat.operators import operator_name
from pjrt_bridge.torch_interop.compat.promises.number_limits import has_numbers, with_number_limits
from pjrt_bridge.torch_interop.compat.promises.powers import promise_bools
from pjrt_bridge.torch_interop.compat.promises.values import DATA_DEPENDENT, is_symbolic

CompileGraph = Callable[[fx.GraphModule, Sequence[Any]], Callable[[list[Any]], Any]]
"""Takes an ATen graph and example inputs; gives a boxed function over a list of arguments."""

KEPT = (
    # Saves other values than its backward expects: gradients would be wrong without an error.
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    # Loses the strides of memory with gaps.
    "aten.select_scatter.default",
    # Its rule selects each part, and what was selected may be written into; eager refuses that for
    # views that one operator returns together.
    "aten.unbind.int",
    # Steps from the number that was given, where eager rounds it to an integer dtype first.
    "aten.linspace.default",
    # Scales bools as integers, which then cannot be added.
    "aten.index_add.default",
    # Takes negative positions, which the operator refuses.
    "aten.index_copy.default",
    # Asks for the value of an index that is a scalar.
    "aten.take.default",
    # Divides before it multiplies, which overflows and vanishes where the operator does not.
    "aten.addcdiv.default",
    # Multiplies complex terms by 1, which makes NaN beside infinities.
    "aten.addcmul.default",
    # Takes a weight without dimensions for a number, which the operator does not round.
    "aten.lerp.Tensor",
    # Negates what the operator has for every element type, and `logical_not` has not.
    "aten.all.default",
    "aten.all.dim",
    "aten.all.dims",
)
"""Operators with lowerings of their own, because torch's decompositions are wrong."""


_READING_PLACES = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "roll",
        *(f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)),
        *(f"reflection_pad{rank}d_backward" for rank in (1, 2, 3)),
    )
)
"""Operators that are decomposed where sizes change."""


@cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    # Operators that are made of others are decomposed without a table when they are traced; to put
    # them into one, `core_aten_decompositions` looks through every operator there is.
    core = _core_aten_decompositions_post_autograd()
    table: dict[Any, Callable[..., Any]] = {
        **core,
        **empty_image_decompositions(),
        **filling_decompositions(),
        **membership_decompositions(),
        **draw_decompositions(),
        **list_decompositions(),
        **fused_step_decompositions(),
        **fused_cell_decompositions(),
        **encoder_layer_decompositions(),
        **loss_scaling_decompositions(),
        **loss_decompositions(),
        **activation_decompositions(),
        **interpolation_decompositions(),
        **jagged_decompositions(),
        **flex_decompositions(),
    }
    for op in _READING_PLACES & table.keys():
        table[op] = partial(_of_changing_sizes, table[op])
    kept = {op: rule for op, rule in table.items() if str(op) not in KEPT}
    return with_memory_orders(with_refused_positions(with_value_checks(kept)))


def _of_changing_sizes(rule: Callable[..., Any], x: torch.Tensor, *args: Any) -> Any:
    """By a decomposition that reads each element at a position of its own.

    With known sizes the operator stays, for its lowering. Padding needs positions.
    """
    return rule(x, *args) if is_symbolic(x) or any(map(is_symbolic, args)) else NotImplemented


def decompositions(
    keep: Callable[[str], bool] = lambda _: False,
    refused: Callable[[OpOverload, Any], bool] | None = None,
    limited_by: Callable[[OpOverload, Any], bool] | None = None,
) -> dict[Any, Callable[..., Any]]:
    """The decompositions that graphs go through before they are lowered.

    Args:
        keep: says of an operator's name that it is to stay as it is.
        refused: says that of an operator with its positional and keyword arguments.
        limited_by: says that PyTorch refuses these, for the limits of numbers that change.
    """
    rules = {**_decompositions(), **quantized_decompositions()}
    table = {op: rule for op, rule in rules.items() if not keep(str(op))}
    if refused is not None:
        table = unless_refused(refused, table)
    numbers = number_decompositions(table)
    found = {
        **table,
        **{op: rule for op, rule in numbers.items() if not keep(str(op))},
        **accelerator_decompositions(traced=True),
    }
    return found if limited_by is None else with_number_limits(found, limited_by)


def unless_refused(
    refused: Callable[[OpOverload, Any], bool], table: Mapping[Any, Callable[..., Any]]
) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions that leave calls as they are.

    Args:
        refused: says of an operator with its positional and keyword arguments that it stays.
        table: the decompositions; of what one of them refuses the operator stays, too.
    """
    return {op: partial(_unless, refused, op, rule) for op, rule in table.items()}


def _unless(
    refused: Callable[[OpOverload, Any], bool],
    op: OpOverload,
    rule: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    if refused(op, (args, kwargs)):
        return NotImplemented
    try:
        return rule(*args, **kwargs)
    except DATA_DEPENDENT:
        raise
    except (IndexError, RuntimeError, TypeError, ValueError):
        # Some refuse what the operator itself takes; if it does not, it raises when it is traced.
        return NotImplemented


def run_aot_autograd(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: CompileGraph,
    backward: CompileGraph,
    inference: CompileGraph,
    keep: Callable[[str], bool] = lambda _: False,
    refused: Callable[[OpOverload, Any], bool] | None = None,
    change: Callable[[fx.GraphModule], None] = lambda _: None,
    saves_views: bool = True,
    attending: Collection[str] = CHOOSING,
    written: WrittenArguments | None = None,
) -> Callable[..., Any]:
    """Capture forward and backward of a Dynamo graph as functional ATen graphs and compile them.

    `keep` names operators that must not be decomposed, and `refused` uses of others; `change` is
    given each joint graph before it is divided into forward and backward. Unless forward
    `saves_views` for backward, it saves what they are views of. On the devices `attending`
    attention in half precision is traced as one operator. `written` takes what AOTAutograd knows of
    the arguments that the graph writes into.

    Raises:
        OverlappingArguments: the graph writes into arguments in one memory, of which AOTAutograd
            makes no one tensor.
    """
    replace_fused_steps(graph.graph)
    graph.recompile()
    # The cache of AOTAutograd does not know which backend an entry belongs to.
    written = written or WrittenArguments()
    limited_by = refused if has_numbers(graph.graph) else None
    with (
        functorch_config.patch(enable_autograd_cache=False),
        portable_kernels(inputs, attending),
        checks_kept(),
        numbers_in_expressions(),
        watched_arguments(written),
    ):
        compiled = aot_autograd(
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=inference,
            decompositions=lambda: decompositions(_stays(keep), refused, limited_by),
            partition_fn=partial(_partition, change, saves_views),
            keep_inference_input_mutations=True,
        )(graph, inputs)
    guard_places(graph, written)
    return compiled


def _stays(keep: Callable[[str], bool]) -> Callable[[str], bool]:
    """Says of an operator's name that it is not decomposed.

    Torch makes an `alias` of `detach`. Results that are detached from each other could not be told
    from views then; and a `scan` refuses results that are one tensor (torch 2.13).
    """
    return lambda name: name == "aten.detach.default" or keep(name)


def _partition(
    change: Callable[[fx.GraphModule], None],
    saves_views: bool,
    joint: fx.GraphModule,
    inputs: Sequence[Any],
    **counts: Any,
) -> Any:
    """Divide a joint graph into forward and backward."""
    change(joint)
    for node in joint.graph.nodes:
        if operator_name(node.target) == "aten.clone.default" and node.args[0].op == "placeholder":
            # AOTAutograd keeps the old value of an input that is written into by a copy. Left to
            # itself the partitioner would copy the input again in backward, when it is too late.
            save_for_backward(node)
    with functorch_config.patch(recompute_views=not saves_views):
        return divided(joint, inputs, **counts)


def divided(joint: fx.GraphModule, inputs: Sequence[Any], **counts: Any) -> Any:
    """The forward and the backward graph of a joint graph whose equal calls are merged.

    Args:
        joint: the graph.
        inputs: its arguments.
        counts: as the partitioners of torch take them.
    """
    # Torch's pass over equal calls imports Inductor.
    # Torch's other partitioner saves what backward reads as it is, transposed weights too, which
    # here would be a copy of each of them in each step.
    with functorch_config.patch(cse=False):
        return min_cut_rematerialization_partition(joint, inputs, **counts)


def save_for_backward(node: fx.Node) -> None:
    """Say in a joint graph that backward is to use what forward has computed here."""
    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def boxed(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """The function as AOTAutograd's runtime calls it: with one list that it may empty."""

    def run(arguments: list[Any]) -> Any:
        return function(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def unless_batched(
    compiled: Callable[[list[Any]], Any], graph: fx.GraphModule
) -> Callable[[list[Any]], Any]:
    """A compiled backward graph that PyTorch runs where it is given many gradients at once.

    `torch.autograd.grad(..., is_grads_batched=True)` gives tensors for which PyTorch runs each
    operator for the whole batch, and which have no memory. Tokens of effects are None, and a
    gradient that is a DTensor brings its mesh.

    Args:
        compiled: of the graph, boxed.
        graph: as AOTAutograd gave it.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    gradients = [at for at, node in enumerate(placeholders) if node.target.startswith("tangents")]
    is_batched = torch._C._functorch.is_legacy_batchedtensor

    def run(arguments: list[Any]) -> Any:
        given = [arguments[at] for at in gradients]
        if any(isinstance(each, torch.Tensor) and is_batched(each) for each in given):
            return fx.Interpreter(graph).boxed_run(arguments)
        return compiled(arguments)

    return boxed(run)


def saved_inputs(backward: fx.Graph, inputs: frozenset[int]) -> frozenset[int]:
    """Where a backward graph is given the inputs of its forward graph that have these indices.

    AOTAutograd names the inputs of both `primals_1`, `primals_2`, ...
    """
    names = {f"primals_{index + 1}" for index in inputs}
    placeholders = [node for node in backward.nodes if node.op == "placeholder"]
    return frozenset(at for at, node in enumerate(placeholders) if node.target in names)


promise_bools()


keep_places_of_views()
keep_places_of_results()
keep_tangents_apart()
