"""A case's work in PyTorch as one StableHLO program, for competitors below torch.compile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.case import Case
from pjrt_bridge.torch_interop.compat import decompositions
from pjrt_bridge.torch_interop.emit.program import Emitted, emit
from pjrt_bridge.torch_interop.lowering.registry import find_lowering


@dataclass(frozen=True)
class TorchProgram:
    """A program and the tensors that it takes.

    Attributes:
        emitted: the program, and how tensors map to its parameters.
        tensors: parameters of the module, then the inputs of a call.
        kept: how many of them are parameters.
    """

    emitted: Emitted
    tensors: Sequence[torch.Tensor]
    kept: int


def program_of(case: Case) -> TorchProgram:
    """Trace and lower the work of a case: inference, one tensor as its result."""
    work = case.torch()
    function = work.function
    names: list[str] = []
    parameters: list[torch.Tensor] = []
    if isinstance(function, torch.nn.Module):
        for name, parameter in function.named_parameters():
            names.append(name)
            parameters.append(parameter.detach())

    def call(*tensors: torch.Tensor) -> list[object]:
        if not isinstance(function, torch.nn.Module):
            return [function(*tensors)]
        given = dict(zip(names, tensors[: len(names)], strict=True))
        return [torch.func.functional_call(function, given, tensors[len(names) :])]

    tensors = [*parameters, *work.inputs]
    with torch.no_grad():
        module = make_fx(call, decompositions(), tracing_mode="fake")(*tensors)
    return TorchProgram(emit(module, find_lowering, name="benchmark"), tensors, len(parameters))
