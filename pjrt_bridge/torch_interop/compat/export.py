"""torch.export, with what AOTAutograd does behind it for a training step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import (
    FakeTensorMode,
)
from torch.utils import _pytree as pytree

from pjrt_bridge.torch_interop.compat.autograd import KEPT, decompositions
from pjrt_bridge.torch_interop.compat.operators import is_composite, operator
from pjrt_bridge.torch_interop.compat.values import is_symbolic


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
        table = {op: rule for op, rule in dict(usual).items() if str(op) not in KEPT}
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
    return {op for op in found if str(op) not in KEPT and is_composite(str(op))}


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
