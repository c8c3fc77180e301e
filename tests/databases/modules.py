"""`module_db`: modules of `torch.nn` with the inputs that torch's tests give them.

A variant is `DTYPE MODE FORMAT`: an element type, `train` or `eval`, and `contiguous` or
`channels_last`, which modules with inputs of four or five dimensions also get.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal import common_modules as database
from torch.utils import _pytree as pytree

from tests.comparing import Tolerance
from tests.databases.case import WAYS, Case
from tests.databases.program import DatabaseProgram, Manner, home, tangents
from tests.opinfo import cases
from tests.sweeping.comparing import Ran

NAME = "modules"

_TYPES = ("float32", "bfloat16", "float64")
_INPUTS = 8
"""Of a module, at most; some losses have dozens that differ in one keyword."""

_TOLERANCE = Tolerance(1e-5, 1e-5)
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def all_cases() -> Iterator[Case]:
    """Every case, in the order of the database."""
    for info in database.module_db:
        modes = ("train", "eval") if info.train_and_eval_differ else ("train",)
        for dtype in _TYPES:
            if getattr(torch, dtype) not in (*info.dtypes, torch.bfloat16):
                continue
            for mode in modes:
                for way in WAYS:
                    yield Case(NAME, info.name, f"{dtype} {mode} contiguous", way)
            if dtype == "float32" and any(map(_has_format, _inputs(info, dtype, "train"))):
                for way in WAYS:
                    yield Case(NAME, info.name, f"{dtype} train channels_last", way)


def program(case: Case) -> DatabaseProgram:
    """What a case runs."""
    (info,) = (info for info in database.module_db if info.name == case.entry)
    dtype, mode, form = case.variant.split()
    found = list(_inputs(info, dtype, mode))
    if form == "channels_last":
        found = [item for item in found if _has_format(item)]
    return _Modules(info, dtype, mode == "train", form, found)


def _inputs(info: Any, dtype: str, mode: str) -> list[Any]:
    cases.seed()
    found = info.module_inputs_func(
        info,
        device="cpu",
        dtype=getattr(torch, dtype),
        requires_grad=True,
        training=mode == "train",
    )
    return list(found)[:: max(1, len(found) // _INPUTS)]


def _has_format(item: Any) -> bool:
    given = item.forward_input
    leaves = pytree.tree_leaves((given.args, given.kwargs)) if given else []
    return any(isinstance(leaf, torch.Tensor) and leaf.dim() in _FORMATS for leaf in leaves)


@dataclass(frozen=True)
class _Modules:
    info: Any
    dtype: str
    training: bool
    form: str
    inputs: list[Any]

    def parts(self) -> list[DatabaseProgram]:
        if len(self.inputs) < 2:
            return []
        return [
            _Modules(self.info, self.dtype, self.training, self.form, [item])
            for item in self.inputs
        ]

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        found = cases.tolerance(self.info, dtype)
        return Tolerance(*map(max, found, _TOLERANCE)) if dtype is torch.float32 else found

    def run(self, manner: Manner) -> Ran:
        modules = torch.nn.ModuleList([self._made(item, manner) for item in self.inputs])
        calls = []
        for item in self.inputs:
            given = item.forward_input
            calls.append(manner.put((given.args, given.kwargs)) if given else ((), {}))
        if self.form == "channels_last":
            calls = pytree.tree_map_only(torch.Tensor, _formatted, calls)

        def forward(calls: list[Any]) -> list[Any]:
            pairs = zip(modules, calls, strict=True)
            return [module(*args, **kwargs) for module, (args, kwargs) in pairs]

        function = manner.compile(forward)
        cases.seed(manner.seed)
        results, gradients = [], []
        # What a call leaves in a module's state shows in the next one.
        for _ in range(2):
            result = function(calls)
            gradients += self._gradients(modules, calls, result)
            results.append(result)
        state = {name: value.detach().clone() for name, value in modules.state_dict().items()}
        return Ran(home(results), home(gradients), home([calls, state]))

    def _made(self, item: Any, manner: Manner) -> torch.nn.Module:
        cases.seed()
        given = item.constructor_input
        args, kwargs = deepcopy((given.args, given.kwargs))
        module = self.info.module_cls(*args, **kwargs)
        if item is not None:
            _without_dropout(module)
        module = module.to(manner.dtype(getattr(torch, self.dtype))).to(manner.device)
        if self.form == "channels_last":
            with suppress(RuntimeError):
                module = module.to(memory_format=torch.channels_last)
        return module.train(self.training)  # type: ignore[no-any-return]

    def _gradients(self, modules: Any, calls: Any, result: Any) -> list[Any]:
        wanted = [
            leaf
            for leaf in [*modules.parameters(), *pytree.tree_leaves(calls)]
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        outputs = [
            leaf
            for leaf in pytree.tree_leaves(_packed_data(result))
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        if not wanted or not outputs:
            return []
        found = torch.autograd.grad(outputs, wanted, tangents(outputs), allow_unused=True)
        # Whether a gradient is None is part of what is compared.
        return list(found)


def _packed_data(result: Any) -> Any:
    if isinstance(result, torch.nn.utils.rnn.PackedSequence):
        return result.data
    if isinstance(result, (list, tuple)):
        return [_packed_data(item) for item in result]
    return result


def _formatted(tensor: torch.Tensor) -> torch.Tensor:
    form = _FORMATS.get(tensor.dim())
    if form is None:
        return tensor
    needed = tensor.requires_grad
    return tensor.detach().contiguous(memory_format=form).requires_grad_(needed)


def _without_dropout(module: torch.nn.Module) -> None:
    """Parts of a module drop nothing out, so that all else is compared number by number."""
    for inner in module.modules():
        if inner is not module and isinstance(inner, torch.nn.modules.dropout._DropoutNd):
            inner.p = 0.0
        if isinstance(inner, (torch.nn.MultiheadAttention, torch.nn.RNNBase)):
            inner.dropout = 0.0
