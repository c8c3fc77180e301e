"""Every private name of torch that the bridge needs, imported here and nowhere else.

When a torch release moves something, this is the one module to change. Operator overloads are
looked up by name when they are needed, so one that is missing breaks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils.checkpoint import CheckpointPolicy

DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
"""What tracing raises for an operator whose output shape or number depends on data."""

GraphCompiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[[list[Any]], Any]]
"""Takes an ATen graph and example inputs; gives a boxed function over a list of arguments."""

# Its decomposition saves other values than its backward expects: gradients would be wrong in
# silence. Both directions have lowerings instead.
_KEPT = ("aten._scaled_dot_product_flash_attention_for_cpu.default",)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decompositions that graphs go through before they are lowered."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    return {op: rule for op, rule in table.items() if str(op) not in _KEPT}


def run_aot_autograd(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: GraphCompiler,
    backward: GraphCompiler,
    inference: GraphCompiler,
) -> Callable[..., Any]:
    """Capture forward and backward of a Dynamo graph as functional ATen graphs and compile them."""
    # The cache of AOTAutograd does not know which backend an entry belongs to.
    with functorch_config.patch(enable_autograd_cache=False):
        return aot_autograd(
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=inference,
            decompositions=decompositions,
            partition_fn=_partition,
            keep_inference_input_mutations=True,
        )(graph, inputs)


def _partition(joint: fx.GraphModule, inputs: Sequence[Any], **counts: Any) -> Any:
    """Divide a joint graph into forward and backward."""
    for node in joint.graph.nodes:
        if operator_name(node.target) == "aten.clone.default" and node.args[0].op == "placeholder":
            # AOTAutograd keeps the old value of an input that is written into by a copy. Left to
            # itself the partitioner would copy the input again in backward, when it is too late.
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    # Torch's other partitioner saves what backward reads as it is, transposed weights too, which
    # here would be a copy of each of them in each step.
    return min_cut_rematerialization_partition(joint, inputs, **counts)


def boxed(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """The function as AOTAutograd's runtime calls it: with one list that it may empty."""

    def run(arguments: list[Any]) -> Any:
        return function(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def static_inputs() -> frozenset[int]:
    """Indices of the graph inputs that are parameters, buffers or tensor attributes.

    Known while AOTAutograd compiles a forward or inference graph.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return frozenset() if metadata is None else frozenset(metadata.static_input_indices or ())


def saved_inputs(backward: fx.Graph, inputs: frozenset[int]) -> frozenset[int]:
    """Where a backward graph is given the inputs of its forward graph that have these indices.

    AOTAutograd names the inputs of both `primals_1`, `primals_2`, ...
    """
    names = {f"primals_{index + 1}" for index in inputs}
    placeholders = [node for node in backward.nodes if node.op == "placeholder"]
    return frozenset(at for at, node in enumerate(placeholders) if node.target in names)


def operator_name(target: object) -> str | None:
    """`"aten.add.Tensor"` of an operator overload, None for anything else."""
    return str(target) if isinstance(target, OpOverload) else None


def promise(node: fx.Node) -> Any:
    """What torch promises of a node's result: fake tensors with shape, dtype, strides; numbers."""
    if node.op == "get_attr":
        return graph_attribute(node.graph.owning_module, str(node.target))
    return node.meta.get("val")


def is_symbolic(value: object) -> bool:
    """Whether a promise depends on a size that is only known in a call."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return True
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return False


def specialize(graph: fx.GraphModule, arguments: Sequence[Any]) -> fx.GraphModule:
    """The graph traced again with the concrete sizes and numbers of these arguments.

    Raises:
        Exception: as torch finds an operator whose result depends on data.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fake = [
            mode.from_tensor(argument.detach(), static_shapes=True)
            if isinstance(argument, torch.Tensor)
            else argument
            for argument in arguments
        ]
        # Through an interpreter, so that the new nodes keep the user's source lines.
        with fx.traceback.preserve_node_meta():
            return make_fx(fx.Interpreter(graph).run)(*fake)


def real_tensors() -> AbstractContextManager[Any]:
    """Operations inside see the values of tensors, also while AOTAutograd compiles."""
    return unset_fake_temporarily()


def stack_trace(node: fx.Node) -> str | None:
    """The user's Python stack where the node was traced."""
    trace = node.meta.get("stack_trace") or node.meta.get("fwd_stack_trace")
    return trace if isinstance(trace, str) else None


def graph_attribute(graph: Any, target: str) -> Any:
    """A tensor or module that a graph module holds by name."""
    value = graph
    for name in target.split("."):
        value = getattr(value, name)
    return value


def substitute(arguments: Any, values: Mapping[fx.Node, Any]) -> Any:
    """Arguments of a node with every node in them replaced by its value."""
    return fx.map_arg(arguments, lambda node: values[node])


def has_effect(node: fx.Node) -> bool:
    """Whether a node must keep its place among others of its kind: it draws, prints, mutates."""
    if not isinstance(node.target, OpOverload):
        return node.op == "call_function"
    return torch.Tag.nondeterministic_seeded in node.target.tags or node.is_impure()


def is_cheap(node: fx.Node) -> bool:
    """Whether a node is a constant, a creator or a view: it costs less than moving its result."""
    if node.op == "get_attr":
        return True
    if not isinstance(node.target, OpOverload) or has_effect(node):
        return False
    return node.target.is_view or not node.all_input_nodes
