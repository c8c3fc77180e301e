"""Every private name of torch that the bridge needs, imported here and nowhere else.

When a torch release moves something, this is the one module to change. Operator overloads are
looked up by name when they are needed, so one that is missing breaks nothing.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters, get_compilation_metrics
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import (
    OutputType,
    PlainTensorMeta,
    ViewAndMutationMeta,
)
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import CompileContext, TracingContext
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

OWN_NAMESPACE = "pjrt_bridge"
"""Of operators that stand for ATen's in graphs; they have ATen's names."""

DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
"""What tracing raises for an operator whose output shape or number depends on data."""

GraphCompiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[[list[Any]], Any]]
"""Takes an ATen graph and example inputs; gives a boxed function over a list of arguments."""

# Operators with lowerings of their own, because torch's decompositions are wrong.
_KEPT = (
    # Saves other values than its backward expects: gradients would be wrong in silence.
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    # Steps from the number that was given, where eager rounds it to an integer dtype first.
    "aten.linspace.default",
    # Asks for the value of an index that is a scalar.
    "aten.take.default",
)


@cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    # Torch looks through every operator there is to make its table.
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    return {op: rule for op, rule in table.items() if str(op) not in _KEPT}


def decompositions(keep: Callable[[str], bool] = lambda _: False) -> dict[Any, Callable[..., Any]]:
    """The decompositions that graphs go through before they are lowered.

    Args:
        keep: says of an operator's name that it is to stay as it is.
    """
    return {op: rule for op, rule in _decompositions().items() if not keep(str(op))}


def run_aot_autograd(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: GraphCompiler,
    backward: GraphCompiler,
    inference: GraphCompiler,
    keep: Callable[[str], bool] = lambda _: False,
    change: Callable[[fx.Graph], None] = lambda _: None,
) -> Callable[..., Any]:
    """Capture forward and backward of a Dynamo graph as functional ATen graphs and compile them.

    `keep` names operators that must not be decomposed; `change` is given each joint graph before it
    is divided into forward and backward.
    """
    # The cache of AOTAutograd does not know which backend an entry belongs to.
    with functorch_config.patch(enable_autograd_cache=False):
        return aot_autograd(
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=inference,
            decompositions=lambda: decompositions(keep),
            partition_fn=partial(_partition, change),
            keep_inference_input_mutations=True,
        )(graph, inputs)


def _partition(
    change: Callable[[fx.Graph], None], joint: fx.GraphModule, inputs: Sequence[Any], **counts: Any
) -> Any:
    """Divide a joint graph into forward and backward."""
    change(joint.graph)
    for node in joint.graph.nodes:
        if operator_name(node.target) == "aten.clone.default" and node.args[0].op == "placeholder":
            # AOTAutograd keeps the old value of an input that is written into by a copy. Left to
            # itself the partitioner would copy the input again in backward, when it is too late.
            save_for_backward(node)
    # Torch's other partitioner saves what backward reads as it is, transposed weights too, which
    # here would be a copy of each of them in each step.
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


def _forward_metadata() -> ViewAndMutationMeta | None:
    """What AOTAutograd knows of the forward or inference graph that it compiles now."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def static_inputs() -> frozenset[int]:
    """Indices of the graph inputs that are parameters, buffers or tensor attributes.

    Known while AOTAutograd compiles a forward or inference graph.
    """
    metadata = _forward_metadata()
    return frozenset() if metadata is None else frozenset(metadata.static_input_indices or ())


def results_of_their_own() -> tuple[int, ...]:
    """Positions, among the outputs of a graph, of the user's results that share no memory.

    Known while AOTAutograd compiles a forward or inference graph.
    """
    metadata = _forward_metadata()
    if metadata is None:
        return ()
    first = len(metadata.tokens) + metadata.num_mutated_inp_runtime_indices
    return tuple(
        first + index
        for index, output in enumerate(metadata.output_info)
        if output.output_type is OutputType.non_alias
    )


def passes_through(inputs: int) -> bool:
    """Whether the user's arguments reach the graph, and its outputs the user, just as they are.

    Known while AOTAutograd compiles an inference graph.

    Args:
        inputs: how many the graph has.
    """
    metadata = _forward_metadata()
    if metadata is None:
        return False
    plain = [*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta]
    return (
        len(metadata.input_info) == inputs
        and all(isinstance(item, PlainTensorMeta) for item in plain)
        and not (
            metadata.mutated_inp_runtime_indices
            or metadata.mutated_graph_handled_indices
            or metadata.aliased_out_indices
            or metadata.num_intermediate_bases
            or metadata.dynamic_outputs
            or metadata.tokens
            or metadata.act_input_indices
            or metadata.is_rng_op_functionalized
            or metadata.num_graphsafe_rng_states
            or metadata.grad_enabled_mutation is not None
        )
    )


def donate_nothing() -> None:
    """Say, while a forward graph is compiled, that backward leaves saved tensors as they are.

    AOTAutograd forbids to run backward twice where it believes that the backend consumes them, and
    little would be won: XLA reuses a donated argument only for a result of its size, and then keeps
    its temporaries elsewhere (0 to 2 % of the memory of backward for models whose batch is not as
    large as a layer is wide). They are released when backward returns.
    """
    metadata = _forward_metadata()
    if metadata is not None:
        metadata.bw_donated_idxs = []


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


def name_of(target: object) -> str:
    """What lowerings are found by, for anything that a graph calls."""
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target}"
    name = operator_name(target)
    return str(getattr(target, "__qualname__", target)) if name is None else name


def label(target: object) -> str:
    """What users read for anything that a graph calls: their own operator's name."""
    namespace, dot, name = name_of(target).partition(".")
    return ("aten" if namespace == OWN_NAMESPACE else namespace) + dot + name


def operator(name: str) -> OpOverload | None:
    """The overload `"namespace.operator.overload"`, None where torch knows none."""
    found = _find(name)
    return found if isinstance(found, OpOverload) else None


def is_operator(name: str) -> bool:
    """Whether torch knows `"namespace.operator"` or `"namespace.operator.overload"`."""
    return _find(name) is not None and name.count(".") > 0


def _find(name: str) -> Any:
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def is_composite(name: str) -> bool:
    """Whether torch always takes an operator (by the names of `is_operator`) apart for a graph."""
    namespace, packet, *overload = name.split(".")
    packet = getattr(getattr(torch.ops, namespace), packet)
    if isinstance(packet, HigherOrderOperator):
        return False
    chosen = overload or [name for name in packet.overloads() if not name.endswith("out")]
    key = "CompositeImplicitAutograd"
    return all(
        torch._C._dispatch_has_kernel_for_dispatch_key(getattr(packet, name).name(), key)
        for name in chosen
    )


def promise(node: fx.Node) -> Any:
    """What torch promises of a node's result: fake tensors with shape, dtype, strides; numbers."""
    if node.op == "get_attr":
        return graph_attribute(node.graph.owning_module, str(node.target))
    return node.meta.get("val")


def is_symbolic(value: object) -> bool:
    """Whether a promise depends on a size or a number that is only known in a call."""
    if isinstance(value, (tuple, list)):
        return any(map(is_symbolic, value))
    if isinstance(value, torch.Tensor):
        numbers = (*value.shape, *value.stride(), value.storage_offset())
        return any(isinstance(number, torch.SymInt) for number in numbers)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def is_ragged(value: object) -> bool:
    """Whether a size is that of a nested tensor's ragged dimension: a name for many sizes."""
    return isinstance(value, torch.SymInt) and value.node.is_nested_int()


_USUAL_SIZE = 5040  # Divisible by all that is likely: the graph may say that a size is.


def stand_in(value: Any) -> Any:
    """A promise with sizes as a call could bring them: what lowers for one size does for others.

    Raises:
        ValueError: a size that cannot be computed, a number that is no size, or sizes that do not
            go together (negative, or of a tensor too large to exist).
    """
    if isinstance(value, (tuple, list)):
        return tuple(map(stand_in, value))
    if is_ragged(value):
        raise ValueError(f"{value} stands for the sizes of a ragged dimension")
    if isinstance(value, torch.SymInt):
        expression, environment = value.node.expr, value.node.shape_env
        sizes = {}
        for symbol in expression.free_symbols:
            bounds = environment.var_to_range[symbol]
            sizes[symbol] = int(max(bounds.lower, min(bounds.upper, _USUAL_SIZE)))
        return int(expression.subs(sizes))
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        raise ValueError(f"{value} is no size")
    if isinstance(value, torch.Tensor) and is_symbolic(value):
        shape, strides = stand_in(value.shape), stand_in(value.stride())
        try:
            with real_tensors(), FakeTensorMode():
                return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
        except RuntimeError as error:
            raise ValueError(f"no tensor has the shape {shape} and strides {strides}") from error
    return value


def expression(value: Any) -> Any:
    """The sympy expression of a symbolic number; anything else as it is."""
    symbolic = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return value.node.expr if symbolic else value


def symbols(value: Any) -> frozenset[Any]:
    """The symbols that a number is calculated from."""
    return frozenset(getattr(expression(value), "free_symbols", ()))


def symbols_of_sizes(value: Any) -> frozenset[Any]:
    """The symbols that a promise's sizes, strides and offsets are calculated from."""
    if isinstance(value, (tuple, list)):
        return frozenset().union(*map(symbols_of_sizes, value))
    if not isinstance(value, torch.Tensor):
        return frozenset()
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return frozenset().union(*map(symbols, numbers))


def evaluate(value: Any, symbols: Mapping[Any, int]) -> Any:
    """A symbolic number with these values of its symbols."""
    found = expression(value)
    if isinstance(value, torch.SymBool):
        return bool(found.subs(symbols))
    return int(found.subs(symbols)) if isinstance(value, torch.SymInt) else found


def quotient(number: Any, divisor: Any) -> Any:
    """The quotient of sizes, numbers or expressions, if it is whole in all calls; or None."""
    if isinstance(number, int) and isinstance(divisor, int):
        return number // divisor if divisor and number % divisor == 0 else None
    found = None if divisor == 0 else number / divisor
    return found if getattr(found, "is_integer", False) else None


def least(size: int | torch.SymInt) -> int:
    """A number that a size is never below."""
    if not isinstance(size, torch.SymInt):
        return size
    found = size.node.shape_env.var_to_range.get(size.node.expr)
    return 0 if found is None else int(max(found.lower, 0))


def bound_arguments(node: fx.Node) -> dict[str, Any]:
    """What an operator is called with, by name, defaults included; nothing if it is none."""
    if not isinstance(node.target, OpOverload):
        return {}
    arguments = node.target._schema.arguments
    given = dict(zip((argument.name for argument in arguments), node.args, strict=False))
    defaults = {item.name: item.default_value for item in arguments if item.has_default_value()}
    return {**defaults, **given, **node.kwargs}


def storage_identity(promise: torch.Tensor) -> int | None:
    """Equal for promises that share memory; None where a tensor has no memory of its own kind."""
    if promise.layout is not torch.strided:
        return None
    return int(promise.untyped_storage()._cdata)


def promise_of_call(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What torch promises of a call, from tensors without memory."""
    with FakeTensorMode() as mode:
        faked = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (tuple(args), dict(kwargs)))
        return op(*faked[0], **faked[1])


def fake_scalar(graph: fx.Graph, dtype: torch.dtype) -> torch.Tensor:
    """A promise of a 0-d tensor, for a node of a graph."""
    promises = (node.meta.get("val") for node in graph.nodes)
    modes = (item.fake_mode for item in promises if isinstance(item, FakeTensor))
    with next(modes, None) or FakeTensorMode():
        return torch.empty((), dtype=dtype, device="cpu")


def fakes() -> FakeTensorMode:
    """A mode in which tensors have shapes but no memory; sizes that depend on data are symbols."""
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())


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


def boxed_module(root: fx.GraphModule, graph: fx.Graph) -> Callable[[list[Any]], Any]:
    """A graph as a function of one list, which it empties: values are dropped after their use."""
    # Not at the top: export works with PyTorch 2.9, which does not have it.
    from torch.fx.graph import _BoxedCodeGen

    graph.set_codegen(_BoxedCodeGen())
    forward: Callable[[list[Any]], Any] = fx.GraphModule(root, graph).forward
    return forward


def original(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """What torch.compile was given to make a function; None where it did not make it."""
    return getattr(function, "_torchdynamo_orig_callable", None) or getattr(
        function, "_orig_mod", None
    )


def compile_id() -> tuple[int, int] | None:
    """While a graph is compiled: the number of its code, and how often that was compiled before."""
    found = CompileContext.current_compile_id()
    if found is None or found.frame_id is None:
        return None
    return found.frame_id, found.frame_compile_id or 0


def recompile_reasons() -> dict[tuple[int, int], str]:
    """Why torch compiled code again, by `compile_id` (of the last compilations)."""
    reasons = {}
    for metrics in get_compilation_metrics():
        identity, _, again = str(metrics.compile_id).partition("/")
        if metrics.recompile_reason and identity.isdigit() and again.isdigit():
            # "0/0: tensor 'x' size mismatch ...": which compilation the guard belongs to.
            reason = metrics.recompile_reason.partition(": ")[2] or metrics.recompile_reason
            reasons[int(identity), int(again)] = reason.strip()
    return reasons


def tree_parts(spec: Any) -> tuple[Any, Any, list[Any]]:
    """Class, context and children of a node of a nesting; the class is None for a leaf."""
    if spec.is_leaf():
        return None, None, []
    children = spec.children() if hasattr(spec, "children") else spec.children_specs
    return spec.type, spec.context, list(children)


def trace(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> torch.export.ExportedProgram:
    """What torch.export makes of a module."""
    with without_own_warnings(), _plain_checks():
        program: torch.export.ExportedProgram = torch.export.export(
            module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
        )
    return program


def decomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """An exported program as a functional graph, decomposed for lowering."""
    # Where it is given a table of one's own, torch leaves operators whole that it takes apart
    # everywhere else; what these are made of may be such operators, too.
    with without_own_warnings(), _plain_checks():
        usual: Any = torch.export.default_decompositions()
        table = {op: rule for op, rule in dict(usual).items() if str(op) not in _KEPT}
        table |= decompositions()
        while True:
            added = _composite(program.graph) - table.keys()
            table |= {op: _parts_of(op) for op in added}
            program = program.run_decompositions(dict(table))
            if not _composite(program.graph) - table.keys():
                return program


def _parts_of(op: OpOverload) -> Callable[..., Any]:
    """What takes a composite operator apart, as it is now: tracing puts the table's rule there."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    rule = op.py_kernels.get(key)
    return rule if callable(rule) else partial(op._op_dk, key)


def _composite(graph: fx.Graph) -> set[OpOverload]:
    """The operators in a graph that torch otherwise takes apart before a backend sees them."""
    found = {node.target for node in graph.nodes if isinstance(node.target, OpOverload)}
    return {op for op in found if str(op) not in _KEPT and is_composite(str(op))}


CHECKS = ("aten._linalg_check_errors.default", "aten._assert_async.default")
"""Operators that give nothing, which torch would drop from graphs that are exported."""


@contextmanager
def _plain_checks() -> Iterator[None]:
    """Keep checks while a graph is traced, as plain calls.

    Torch (2.13) has those of linear algebra hand on tokens of their order. Exported programs have
    no place for these, and joint graphs with them cannot be traced.
    """
    try:
        from torch._library.simple_registry import singleton

        effects = singleton.find("aten::_linalg_check_errors").effect
        before, kept = effects.effect, fx.node._side_effectful_functions
    except (ImportError, AttributeError):
        yield
        return
    new: set[Any] = set(filter(None, map(operator, CHECKS))) - kept
    effects.register(None)
    kept |= new
    try:
        yield
    finally:
        effects.register(before)
        kept -= new


@contextmanager
def without_own_warnings() -> Iterator[None]:
    """Without what torch (2.13) says of its own doings: `LeafSpec` in copies, weights of an RNN."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*_flat_weights.* assigned during export", UserWarning)
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
        yield


def export_joint(
    module: fx.GraphModule, arguments: Sequence[Any], loss: int
) -> tuple[fx.GraphModule, Any]:
    """Forward and backward of a graph in one functional graph, decomposed, and its signature.

    It returns new values of arguments that the graph writes into, the graph's outputs, and the
    gradient of output `loss` for each argument that requires one.
    """
    from torch._functorch.aot_autograd import aot_export_module

    with without_own_warnings(), _plain_checks():
        joint, signature = aot_export_module(
            module,
            arguments,
            decompositions=decompositions(),
            trace_joint=True,
            output_loss_index=loss,
        )
    assert isinstance(joint, fx.GraphModule)
    return joint, signature


def flat_tree(count: int) -> Any:
    """The nesting of a tuple of so many leaves."""
    return pytree.tree_structure((0,) * count)


def flat_call(count: int) -> Any:
    """The nesting of a call with so many arguments by position."""
    return pytree.tree_structure(((0,) * count, {}))


def promise_alike(graph: fx.Graph) -> None:
    """Make all promises in a graph ones that one tracing could have made."""
    known = [node.meta.get("val") for node in graph.nodes]
    symbolic = (item for item in known if isinstance(item, FakeTensor) and is_symbolic(item))
    mode = next((item.fake_mode for item in symbolic), None) or FakeTensorMode()

    def alike(item: torch.Tensor) -> torch.Tensor:
        if is_symbolic(item):
            return item
        shape, strides = item.shape, item.stride()
        return torch.empty_strided(shape, strides, dtype=item.dtype, device=item.device)

    with mode:
        for node in graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = pytree.tree_map_only(torch.Tensor, alike, node.meta["val"])


def symbol_ranges(value: Any) -> dict[Any, Any]:
    """The limits of the symbols that a promise's sizes, or a number, are calculated from."""
    if isinstance(value, (tuple, list)):
        return {symbol: limits for item in value for symbol, limits in symbol_ranges(item).items()}
    if isinstance(value, torch.Tensor):
        return symbol_ranges((*value.shape, *value.stride(), value.storage_offset()))
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return {}
    known = value.node.shape_env.var_to_range
    return {symbol: known[symbol] for symbol in symbols(value)}


def tree_leaves(tree: Any) -> list[Any]:
    """What is in nested lists, tuples, dicts and other containers that torch knows."""
    return pytree.tree_leaves(tree)


def leaves_of(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors without a history that gradients of these outputs flow to."""
    found, seen, waiting = [], set(), [output.grad_fn for output in outputs]
    while waiting:
        function = waiting.pop()
        if function is not None and function not in seen:
            seen.add(function)
            waiting += [before for before, _ in function.next_functions]
            if hasattr(function, "variable"):
                found.append(function.variable)
    return found


def graph_breaks() -> Mapping[str, int]:
    """Why torch divided functions into several graphs, and how often, since its last reset."""
    return Counter({_in_one_line(text): count for text, count in counters["graph_break"].items()})


def _in_one_line(text: str) -> str:
    """Torch's summary, explanation and first hint of a graph break."""
    summary, *rest = [line.strip() for line in text.splitlines() if line.strip()]
    found: dict[str, str] = {}
    for line in rest:
        head, colon, words = line.partition(": ")
        if colon:
            found.setdefault(head, words)
    explained = [found[head] for head in ("Explanation", "Hint") if head in found]
    return ": ".join([summary, " ".join(explained)]) if explained else summary
