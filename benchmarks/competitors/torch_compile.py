"""PyTorch: eager, Inductor, and the bridge, which all take the same module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.case import Case, TorchWork
from benchmarks.competitors import WARM, Timer, timer

_ALONE: dict[str, Any] = {"fallback": "error"}
"""An operator that went to the host unasked would be measured as something else."""

_COMPILERS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "pjrt": ("pjrt", _ALONE),
    "pjrt alone": ("pjrt", _ALONE),
    "inductor": ("inductor", None),
    "inductor tuned": (
        "inductor",
        {"freezing": True, "max_autotune": True, "cpp_wrapper": True},
    ),
}
"""Backend and options of each that compiles."""


def prepare(case: Case, name: str) -> Timer:
    """A timer of the case's work; nothing is compiled before its first call."""
    torch.manual_seed(0)
    return timer(_call(case.torch(), name.removesuffix(WARM)))


def _call(work: TorchWork, name: str) -> Callable[[], object]:
    function = _compiled(work.function, name)
    if not work.training:
        torch.set_grad_enabled(False)
        return partial(function, *work.inputs)
    if work.optimizer is None:
        assert isinstance(work.function, torch.nn.Module)
        parameters = list(work.function.parameters())

        def both_ways() -> None:
            function(*work.inputs).backward()
            for parameter in parameters:
                parameter.grad = None

        return both_ways

    update = _compiled(work.optimizer.step, name)

    def step() -> None:
        work.optimizer.zero_grad()
        function(*work.inputs).backward()
        update()

    return step


def _compiled(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    if name == "eager":
        return function
    backend, options = _COMPILERS[name]
    compiled: Callable[..., Any] = torch.compile(function, backend=backend, options=options)
    return compiled
