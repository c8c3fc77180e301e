"""torch.export, with what AOTAutograd does behind it for a training step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
)
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from pjrt_bridge.torch_interop.compat.aot.autograd import KEPT, decompositions
from pjrt_bridge.torch_interop.compat.aot.tracing import errors_unlogged
from pjrt_bridge.torch_interop.compat.decomposed.checks import plain_checks
from pjrt_bridge.torch_interop.compat.operators import is_composite
from pjrt_bridge.torch_interop.compat.promises.values import is_symbolic, without_autocast


def trace(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> torch.export.ExportedProgram:
    """Trace a module with torch.export."""
    args, kwargs = _each_once(args, kwargs)
    with without_own_warnings(), plain_checks(), errors_unlogged():
        program: torch.export.ExportedProgram = torch.export.export(
            module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
        )
    return _on_host(program)


def _on_host(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with weights and promises in host memory, where a device of torch has any."""
    held = (*program.state_dict.values(), *program.constants.values())
    promises = (node.meta.get("val") for node in program.graph.nodes)
    devices = {
        value.device.type
        for value in pytree.tree_leaves((held, list(promises)))
        if isinstance(value, torch.Tensor)
    }
    if devices <= {"cpu", "meta"}:
        return program
    # Only what is held is replaced in what may be the user's.
    program._state_dict = dict(program._state_dict)
    program._constants = dict(program._constants)
    return move_to_device_pass(program, "cpu")


def _each_once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments with another tensor over the same memory where one comes again.

    Torch (2.13) takes a tensor that is given twice for one argument, and forgets about the first.
    """
    seen: set[int] = set()

    def once(item: torch.Tensor) -> torch.Tensor:
        if id(item) in seen:
            return item.detach().requires_grad_(item.requires_grad)
        seen.add(id(item))
        return item

    return pytree.tree_map_only(torch.Tensor, once, (args, kwargs))


def conditions(program: torch.export.ExportedProgram) -> list[Any]:
    """What torch.export took for true of symbolic sizes when it traced, as expressions.

    Limits of one symbol are not among them, but in the program's `range_constraints`.
    """
    for node in program.graph.find_nodes(op="placeholder"):
        sizes: Any = getattr(node.meta.get("val"), "shape", ())
        for size in sizes:
            if is_symbolic(size):
                return [guard.expr for guard in size.node.shape_env.guards]
    return []


def is_met(condition: Any, values: Mapping[Any, int]) -> bool:
    """Whether such a condition may hold for these values of symbols."""
    return bool(condition.subs(dict(values)) != False)  # noqa: E712


def constants_without_numbers(program: torch.export.ExportedProgram) -> list[str]:
    """Constants of an exported program that are tensors of its tracing: nobody has their numbers.

    Torch (2.13) takes what a transform of `torch.func` wraps for a constant, arguments too.
    """
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return [
        name
        for name, value in program.constants.items()
        if isinstance(value, torch.Tensor) and (isinstance(value, FakeTensor) or wrapped(value))
    ]


def decomposed(
    program: torch.export.ExportedProgram,
    rules: Mapping[OpOverload, Callable[..., Any]] = MappingProxyType({}),
) -> torch.export.ExportedProgram:
    """An exported program as a functional graph, decomposed for lowering.

    Args:
        program: as torch.export gives it.
        rules: decompositions that are used instead of torch's.
    """
    _take_out_expressions(program)
    # Where it is given a table of one's own, torch does not decompose operators that it decomposes
    # everywhere else; what these are made of may be such operators, too.
    with without_own_warnings(), without_autocast(), plain_checks(), _registered_once():
        usual: Any = torch.export.default_decompositions()
        table = {op: rule for op, rule in dict(usual).items() if str(op) not in KEPT}
        table |= {**decompositions(), **rules}
        while True:
            added = _composite(program.graph) - table.keys()
            table |= {op: _parts_of(op) for op in added}
            with _unguarded(program):
                program = program.run_decompositions(dict(table))
            if not _composite(program.graph) - table.keys():
                return _on_host(program)


@contextmanager
def _unguarded(program: torch.export.ExportedProgram) -> Iterator[None]:
    """Have torch decompose a program of constant sizes without code that checks its arguments.

    Torch (2.13) searches each check for the name of each argument: most of the time for a step of
    an optimizer with thousands of tensors. What is decomposed is called with its own examples.
    """
    if program.range_constraints:
        yield  # checks tell of sizes there
        return
    own: Any = program
    own.module = partial(program.module, check_guards=False)
    try:
        yield
    finally:
        del own.module


@contextmanager
def _registered_once() -> Iterator[None]:
    """Have torch ask its dispatcher for composite operators once.

    Torch (2.13) asks for all of them again for each namespace of operators, twice for each program:
    a third of the time that a small model takes.
    """
    try:
        from torch._export import utils

        register = utils._materialize_cpp_cia_ops
    except (ImportError, AttributeError):
        yield
        return
    register()
    utils._materialize_cpp_cia_ops = lambda: None
    try:
        yield
    finally:
        utils._materialize_cpp_cia_ops = register


def with_module(
    program: torch.export.ExportedProgram, module: fx.GraphModule
) -> torch.export.ExportedProgram:
    """The program with another graph that has the same inputs and as many outputs."""
    (end,) = module.graph.find_nodes(op="output")
    signature = program.graph_signature
    outputs = [
        replace(spec, arg=replace(spec.arg, name=item.name)) if isinstance(item, fx.Node) else spec
        for spec, item in zip(signature.output_specs, end.args[0], strict=True)
    ]
    with without_own_warnings():
        return program._update(module, replace(signature, output_specs=outputs))


def _take_out_expressions(program: torch.export.ExportedProgram) -> None:
    """Leave only symbols among those whose limits are known.

    Torch (2.13) puts expressions there, such as 2*s0, when it loads a program with a dimension that
    is a multiple of another, and then fails to decompose the program.
    """
    for node in program.graph.find_nodes(op="placeholder"):
        sizes: Any = getattr(node.meta.get("val"), "shape", ())
        for size in sizes:
            if is_symbolic(size):
                ranges = size.node.shape_env.var_to_range
                for found in [found for found in ranges if not found.is_Symbol]:
                    del ranges[found]


def _parts_of(op: OpOverload) -> Callable[..., Any]:
    """The decomposition of a composite operator now: tracing puts the rule of its table there."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    rule = op.py_kernels.get(key)
    return rule if callable(rule) else partial(op._op_dk, key)


def _composite(graph: fx.Graph) -> set[OpOverload]:
    """The operators in a graph that torch otherwise decomposes before a backend gets them."""
    found = {node.target for node in graph.nodes if isinstance(node.target, OpOverload)}
    return {op for op in found if str(op) not in KEPT and is_composite(str(op))}


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
    from torch._functorch import aot_autograd

    with without_own_warnings(), plain_checks(), errors_unlogged(), _each_output_once(aot_autograd):
        joint, signature = aot_autograd.aot_export_module(
            module,
            arguments,
            decompositions=decompositions(),
            trace_joint=True,
            output_loss_index=loss,
        )
    assert isinstance(joint, fx.GraphModule)
    return joint, signature


@contextmanager
def _each_output_once(module: Any) -> Iterator[None]:
    """Have torch name each gradient by a node of its own, also where two are the same.

    Its signature (torch 2.13) finds the gradient of a parameter by the name of the node.

    Args:
        module: of torch, which makes signatures.
    """
    make = module.create_graph_signature

    def signature(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        (end,) = joint.graph.find_nodes(op="output")
        seen: set[fx.Node] = set()

        def once(item: Any) -> Any:
            if not isinstance(item, fx.Node) or item not in seen:
                seen.add(item)
                return item
            with joint.graph.inserting_before(end):
                copied = joint.graph.call_function(torch.ops.aten.clone.default, (item,))
            copied.meta = dict(item.meta)
            return copied

        end.args = pytree.tree_map(once, end.args)
        joint.recompile()
        return make(joint, *args, **kwargs)

    module.create_graph_signature = signature
    try:
        yield
    finally:
        module.create_graph_signature = make


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
