"""Operators of PyTorch that stay one operation in exported models, for compilers that know them.

They are marked in the graph that torch.export gives, before they are decomposed.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from pjrt_bridge.torch_interop import compat, schemas
from pjrt_bridge.torch_interop.composites import BEGIN, END, encoded, of_operator

KEPT = (
    "aten._weight_int8pack_mm.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.avg_pool2d.default",
    "aten.batch_norm.default",
    "aten.embedding_bag.padding_idx",
    "aten.gelu.default",
    "aten.group_norm.default",
    "aten.hardswish.default",
    "aten.instance_norm.default",
    "aten.layer_norm.default",
    "aten.log_softmax.int",
    "aten.mish.default",
    "aten.rms_norm.default",
    "aten.scaled_dot_product_attention.default",
    "aten.silu.default",
    "aten.softmax.int",
    "aten.topk.default",
    "aten.upsample_bilinear2d.vec",
    "aten.upsample_nearest2d.vec",
)
"""Operators that are computed from many operations of StableHLO, and which compilers look for."""


def with_marks(program: ExportedProgram) -> ExportedProgram:
    """A program with marks around these operators.

    Args:
        program: as torch.export gives it; is not changed.
    """
    found = [node for node in program.graph.nodes if str(node.target) in KEPT]
    if not found:
        return program
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(program.graph, copies))
    for node in found:
        _mark(copies[node])
    return compat.with_module(program, fx.GraphModule(program.graph_module, graph))


def _mark(node: fx.Node) -> None:
    assert isinstance(node.target, compat.OpOverload)
    arguments = schemas.bind(node.target, node.args, node.kwargs)
    described = of_operator(node.target, arguments, _is_tensor)
    results = _results(node)
    if described is None or not described[1] or not results:
        return
    composite, operands = described
    graph = node.graph
    begin, end = (compat.operator(name) for name in (BEGIN, END))
    assert begin is not None
    assert end is not None
    with graph.inserting_before(node):
        begun = graph.call_function(begin, (list(operands.values()),))
    positions = {item: at for at, item in enumerate(graph.nodes)}
    with graph.inserting_after(max(results, key=positions.__getitem__)):
        ended = graph.call_function(end, (begun, results, encoded(composite), [], [], []))
    begun.meta = {**node.meta, "val": None}
    ended.meta = {**node.meta, "val": None}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(compat.promise(value), torch.Tensor)


def _results(node: fx.Node) -> list[fx.Node]:
    """The node itself; of several results those up to the last that is read."""
    if isinstance(compat.promise(node), torch.Tensor):
        return [node]
    read: dict[int, fx.Node] = {
        int(user.args[1]): user  # type: ignore[arg-type]
        for user in node.users
        if user.users
    }
    for index in range(max(read, default=0)):
        if index not in read:
            with node.graph.inserting_after(node):
                read[index] = node.graph.call_function(operator.getitem, (node, index))
            read[index].meta["val"] = compat.promise(node)[index]
    return [read[index] for index in sorted(read)]
