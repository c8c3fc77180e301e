"""What gives a program's results without the bridge: torch's own ways to compile and to export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.aliases.gaps import with_strides
from tests.differential.exporting import EXPORT_ORACLES
from tests.differential.modes import Mode


def oracles_of(mode: Mode) -> tuple[str, ...]:
    """What gives a program's results in a mode without the bridge."""
    if mode.eager:
        return ()
    return EXPORT_ORACLES if mode.exported else ("aot_eager", DYNAMO, PARTITIONED, *OF_LAYOUT)


def _promised(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """A backend that runs graphs in PyTorch, and gives results the strides that torch promises."""

    def run(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        (end,) = graph.graph.find_nodes(op="output")
        promises = [
            compat.promise(item) if isinstance(item, fx.Node) else None for item in end.args[0]
        ]

        def call(arguments: list[Any]) -> list[Any]:
            pairs = zip(graph.forward(*arguments), promises, strict=True)
            return [_laid_out(result, promise) for result, promise in pairs]

        return compat.boxed(call)

    return compat.run_aot_autograd(
        graph, inputs, forward=run, backward=run, inference=run, keep=lambda _: True
    )


def _laid_out(result: Any, promise: Any) -> Any:
    if not isinstance(result, torch.Tensor) or compat.is_symbolic(promise):
        return result
    return with_strides(result, promise.stride())


def _decomposed(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """A backend that runs in PyTorch the graphs that lowerings are given."""

    def run(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        return compat.boxed(lambda arguments: graph.forward(*arguments))

    return compat.run_aot_autograd(graph, inputs, forward=run, backward=run, inference=run)


DYNAMO = "eager"
"""What Dynamo makes of a function, which PyTorch then runs in eager mode."""

PARTITIONED = "aot_eager_decomp_partition"
"""Torch's partitioner and decompositions: an oracle of exceptions, since values may be theirs."""

OF_LAYOUT: dict[str, Any] = {"decomposed": _decomposed, "promised": _promised}
"""Oracles of strides and offsets."""
