"""`optim_db`: optimizers with the settings that torch's tests give them, and compiled steps.

A variant is words joined by commas: the description that the database has of the settings, the
implementation (`for-loop`, `foreach`, `fused` or `differentiable`), and where it differs from the
default the element type, `closure`, `tensor-lr` or `scheduler-N`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.testing._internal import common_optimizers as database

from tests.comparing import Tolerance
from tests.databases.case import WAYS, Case
from tests.databases.program import DatabaseProgram, Manner, home
from tests.opinfo import cases
from tests.sweeping.comparing import Ran

NAME = "optimizers"
STEPS = 3

_TOLERANCE = Tolerance(1e-5, 1e-6)
_SHAPES = ((4, 4), (3, 4), (4,), (1,))


@dataclass(frozen=True)
class _Setting:
    info: Any
    settings: dict[str, Any]
    dtype: torch.dtype = torch.float32
    closure: bool = False
    scheduler: int | None = None


def all_cases() -> Iterator[Case]:
    """Every case, in the order of the database."""
    for info in database.optim_db:
        for variant in _variants(info.name):
            for way in WAYS[: 1 if info.only_supports_sparse_grads else None]:
                yield Case(NAME, info.name, variant, way)


def program(case: Case) -> DatabaseProgram:
    """What a case runs."""
    return _Steps(_variants(case.entry)[case.variant])


@cache
def _variants(name: str) -> dict[str, _Setting]:
    (info,) = (info for info in database.optim_db if info.name == name)
    found: dict[str, _Setting] = {}
    # On CUDA there are settings more, which compiled run everywhere.
    for item in [*info.optim_inputs_func("cpu"), *info.optim_inputs_func("cuda")]:
        for kind in ("for-loop", *info.supported_impls):
            if kind == "fused" and "cpu" not in info.supports_fused_on:
                continue
            settings = {flag: flag == kind for flag in info.supported_impls}
            words = [re.sub(r"[ ,&]+", "-", item.desc), kind]
            given = {**_few_turns(info), **item.kwargs, **settings}
            found.setdefault(",".join(words), _Setting(info, given))
    first = {**_few_turns(info), **info.optim_inputs_func("cpu")[0].kwargs}
    for kind in ("for-loop", "foreach") if "foreach" in info.supported_impls else ("for-loop",):
        settings = {**first, **({"foreach": kind == "foreach"} if info.supported_impls else {})}
        tensor = {**settings, "lr": torch.tensor(0.01)}
        found[f"default,{kind},tensor-lr"] = _Setting(info, tensor)
        found[f"default,{kind},closure"] = _Setting(info, settings, closure=True)
        found[f"default,{kind},bfloat16"] = _Setting(info, settings, torch.bfloat16)
        if info.supports_complex:
            found[f"default,{kind},complex64"] = _Setting(info, settings, torch.complex64)
        for number in range(len(info.scheduler_inputs)):
            found[f"default,{kind},scheduler-{number}"] = _Setting(info, settings, scheduler=number)
            found[f"default,{kind},tensor-lr,scheduler-{number}"] = _Setting(
                info, tensor, scheduler=number
            )
    return found


def _few_turns(info: Any) -> dict[str, Any]:
    """Settings with which L-BFGS stays away from the minimum, where it goes by rounding."""
    return {"max_iter": 2} if info.step_requires_closure else {}


@dataclass(frozen=True)
class _Steps:
    setting: _Setting

    def parts(self) -> list[DatabaseProgram]:
        return []

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        found = cases.tolerance(_Undecorated, dtype)
        return Tolerance(*map(max, found, _TOLERANCE)) if dtype is torch.float32 else found

    def run(self, manner: Manner) -> Ran:
        setting = self.setting
        info = setting.info
        generator = torch.Generator().manual_seed(0)
        shapes = [shape for shape in _SHAPES if info.name != "Muon" or len(shape) == 2]

        def drawn(shape: tuple[int, ...]) -> torch.Tensor:
            made = torch.randn(shape, dtype=setting.dtype, generator=generator)
            return manner.put(made)  # type: ignore[no-any-return]

        parameters = [torch.nn.Parameter(drawn(shape)) for shape in shapes]
        if setting.settings.get("differentiable"):
            # Torch writes into what is differentiated itself.
            parameters = [parameter.clone() for parameter in parameters]
        optimizer = info.optim_cls(parameters, **deepcopy(setting.settings))
        schedulers = []
        if setting.scheduler is not None:
            schedulers = [make(optimizer) for make in info.scheduler_inputs[setting.scheduler]]
        step = manner.compile(self._step(optimizer, parameters))
        results = []
        for _ in range(STEPS):
            for parameter in parameters:
                gradient = drawn(tuple(parameter.shape))
                sparse = info.only_supports_sparse_grads and gradient.dim() > 1
                parameter.grad = gradient.to_sparse(1) if sparse else gradient
            if info.only_supports_sparse_grads:
                for parameter in parameters:
                    if not parameter.grad.is_sparse:
                        parameter.grad = None
            result = step()
            for scheduler in schedulers:
                if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                    scheduler.step(1.0)
                else:
                    scheduler.step()
            results.append([deepcopy(home(list(parameters))), home(result)])
        return Ran(results, [], home(deepcopy(optimizer.state_dict())))

    def _step(self, optimizer: Any, parameters: list[torch.Tensor]) -> Callable[[], Any]:
        if not (self.setting.closure or self.setting.info.step_requires_closure):
            return lambda: optimizer.step()

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = sum((one.abs() ** 3 / 3 + (one.abs() - 0.5) ** 2).sum() for one in parameters)
            loss.backward()
            return loss

        return lambda: optimizer.step(closure)


class _Undecorated:
    decorators = ()
