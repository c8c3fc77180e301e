"""Optimizer steps compiled as a graph: on the device, new values written where the old ones lie."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.bind.adapter import TorchAdapter
from tests.torch_interop.helpers import assert_same, leaves

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    # Torch's own, while it traces an optimizer.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*lr scheduler:UserWarning"),
]

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, lr=1e-2),
    "Adam with amsgrad": lambda p: optim.Adam(p, lr=1e-2, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=1e-2),
    "Adamax": lambda p: optim.Adamax(p, lr=1e-2),
    "NAdam": lambda p: optim.NAdam(p, lr=1e-2),
    "RAdam": lambda p: optim.RAdam(p, lr=1e-2),
    "Adagrad": lambda p: optim.Adagrad(p, lr=1e-2),
    "Adadelta": lambda p: optim.Adadelta(p),
    "RMSprop": lambda p: optim.RMSprop(p, lr=1e-2, momentum=0.5, centered=True),
    "Rprop": lambda p: optim.Rprop(p),
    "ASGD": lambda p: optim.ASGD(p, lr=1e-2),
    "Muon": lambda p: optim.Muon(p, lr=1e-2),
    "fused SGD": lambda p: optim.SGD(p, lr=0.1, fused=True),
    "fused SGD with momentum": lambda p: optim.SGD(
        p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.1, maximize=True, fused=True
    ),
    "fused SGD with Nesterov's momentum": lambda p: optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, fused=True
    ),
    "fused Adam": lambda p: optim.Adam(p, lr=1e-2, weight_decay=0.1, fused=True),
    "fused Adam with amsgrad": lambda p: optim.Adam(p, lr=1e-2, amsgrad=True, fused=True),
    "fused AdamW": lambda p: optim.AdamW(p, lr=1e-2, maximize=True, fused=True),
    "fused Adagrad": lambda p: optim.Adagrad(
        p, lr=1e-2, lr_decay=0.1, weight_decay=0.1, fused=True
    ),
}


def models() -> tuple[nn.Module, nn.Module]:
    """The same twice; each weight is larger than what is copied."""
    model = nn.Sequential(nn.Linear(150, 130, bias=False), nn.Linear(130, 140, bias=False))
    return model, copy.deepcopy(model)


def train(model: nn.Module, step: Callable[[], Any], x: torch.Tensor) -> None:
    model.zero_grad()
    model(x).square().mean().backward()
    step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_agree_with_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []

    def assign(self: TorchAdapter, target: torch.Tensor, value: torch.Tensor) -> None:
        if target.data_ptr() != value.data_ptr():
            copied.append(target.numel())
        original(self, target, value)

    original = TorchAdapter.assign
    monkeypatch.setattr(TorchAdapter, "assign", assign)
    ours, theirs = models()
    ours_optimizer, theirs_optimizer = (
        OPTIMIZERS[name](model.parameters()) for model in (ours, theirs)
    )
    step = torch.compile(ours_optimizer.step, backend="pjrt", options={"fallback": "error"})
    for _ in range(4):
        x = torch.randn(20, 150)
        train(ours, step, x)
        train(theirs, theirs_optimizer.step, x)
    # Muon computes in bfloat16.
    atol = 1e-2 if name == "Muon" else 1e-4
    assert_same(list(ours.parameters()), list(theirs.parameters()), rtol=1e-4, atol=atol)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        state = theirs_optimizer.state[other]
        if leaves(state):
            assert_same(ours_optimizer.state[one], state, rtol=1e-3, atol=atol)
    assert compiled_graphs()
    # Counters of steps are copied, weights and their statistics are not.
    assert max(copied, default=1) == 1


def test_a_learning_rate_that_is_a_tensor_changes_without_compiling_again() -> None:
    ours, theirs = models()
    rate = torch.tensor(0.1)
    compiled_optimizer = optim.Adam(ours.parameters(), lr=rate, foreach=False)
    eager = optim.Adam(theirs.parameters(), lr=0.1)
    step = torch.compile(compiled_optimizer.step, backend="pjrt", options={"fallback": "error"})
    for value in (0.1, 0.05, 0.01, 0.2):
        rate.fill_(value)
        eager.param_groups[0]["lr"] = value
        x = torch.randn(20, 150)
        train(ours, step, x)
        train(theirs, eager.step, x)
    assert_same(list(ours.parameters()), list(theirs.parameters()), rtol=1e-3, atol=1e-4)
    assert len(compiled_graphs()) == 1


def test_a_whole_training_step_of_a_compiled_model_and_optimizer() -> None:
    ours, theirs = models()
    run = torch.compile(ours, backend="pjrt", options={"fallback": "error"})
    compiled_optimizer = optim.AdamW(ours.parameters(), lr=1e-2)
    eager = optim.AdamW(theirs.parameters(), lr=1e-2)
    step = torch.compile(compiled_optimizer.step, backend="pjrt", options={"fallback": "error"})
    losses = []
    x = torch.randn(20, 150)
    for _ in range(6):
        ours.zero_grad()
        loss = run(x).square().mean()
        loss.backward()
        step()
        losses.append(loss.item())
        train(theirs, eager.step, x)
    assert losses == sorted(losses, reverse=True)
    assert_same(list(ours.parameters()), list(theirs.parameters()), rtol=1e-3, atol=1e-4)


SCHEDULED: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD without foreach": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "fused SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.1),
    "fused AdamW": lambda p: optim.AdamW(p, lr=0.1, fused=True),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.1, momentum=0.5),
    "RMSprop without momentum": lambda p: optim.RMSprop(p, lr=0.1),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_scheduled_learning_rate_is_no_reason_to_compile_again(
    name: str, recwarn: pytest.WarningsRecorder
) -> None:
    """Where there is a momentum (or the like of it) it changes in each step, too."""
    ours, theirs = models()
    optimizers = [SCHEDULED[name](model.parameters()) for model in (ours, theirs)]
    cycle = optimizers[0].defaults.get("momentum") or "betas" in optimizers[0].defaults
    schedulers = [
        optim.lr_scheduler.OneCycleLR(one, 0.01, total_steps=20)
        if cycle
        else optim.lr_scheduler.ExponentialLR(one, 0.9)
        for one in optimizers
    ]
    step = torch.compile(optimizers[0].step, backend="pjrt", options={"fallback": "error"})
    for _ in range(10):
        x = torch.randn(20, 150)
        train(ours, step, x)
        train(theirs, optimizers[1].step, x)
        for scheduler in schedulers:
            scheduler.step()
    assert_same(list(ours.parameters()), list(theirs.parameters()), rtol=1e-3, atol=1e-3)
    # Once without the tensors that the first step makes, once for all learning rates.
    assert len(compiled_graphs()) <= 3
    assert not [item for item in recwarn if "PyTorch does" in str(item.message)]


IN_HALF_PRECISION: dict[str, Callable[[Any, bool], optim.Optimizer]] = {
    # PyTorch's fused kernel of half precision writes no vector of weights back.
    "SGD": lambda p, ours: optim.SGD(p, lr=0.1, momentum=0.9, maximize=True, fused=ours),
    "AdamW": lambda p, ours: optim.AdamW(p, lr=1e-2, fused=True),
    "Adagrad": lambda p, ours: optim.Adagrad(p, lr=1e-2, lr_decay=0.1, fused=True),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", IN_HALF_PRECISION)
def test_fused_steps_in_half_precision(name: str, dtype: torch.dtype) -> None:
    ours = nn.Linear(20, 10).to(dtype)
    theirs = copy.deepcopy(ours)
    optimizers = [
        IN_HALF_PRECISION[name](model.parameters(), model is ours) for model in (ours, theirs)
    ]
    step = torch.compile(optimizers[0].step, backend="pjrt", options={"fallback": "error"})
    for _ in range(3):
        for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            parameter.grad = torch.randn_like(parameter)
            other.grad = parameter.grad.clone()
        step()
        optimizers[1].step()
    assert_same(list(ours.parameters()), list(theirs.parameters()), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW, optim.Adagrad], ids=lambda k: k.__name__)
def test_a_fused_step_takes_a_scaler_s_numbers(kind: Any, found: float) -> None:
    """Gradients are divided by the scale; nothing is written where one is infinite."""
    ours, theirs = models()
    optimizers = [kind(model.parameters(), lr=0.1, fused=True) for model in (ours, theirs)]
    step = torch.compile(optimizers[0].step, backend="pjrt", options={"fallback": "error"})
    for scaled in optimizers:
        scaled.grad_scale = torch.tensor(4.0)
        scaled.found_inf = torch.tensor(found)
    x = torch.randn(20, 150)
    train(ours, step, x)
    train(theirs, optimizers[1].step, x)
    assert_same(list(ours.parameters()), list(theirs.parameters()))
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_same(one.grad, other.grad)
        state = optimizers[1].state[other]
        if leaves(state) and not (found and kind is optim.SGD):
            assert_same(optimizers[0].state[one], state)
    assert len(compiled_graphs()) == 1


def test_other_backends_keep_out_of_fused_steps() -> None:
    model, _ = models()
    fused = optim.AdamW(model.parameters(), fused=True)
    graphs: list[torch.fx.GraphModule] = []

    def collect(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    train(model, torch.compile(fused.step, backend=collect), torch.randn(20, 150))
    assert not graphs


@pytest.mark.parametrize("function", ["_fused_adam_", "_fused_adamw_"])
def test_a_fused_step_that_is_called_as_a_function(function: str) -> None:
    def tensors() -> list[list[torch.Tensor]]:
        torch.manual_seed(0)
        lists = [[torch.rand(3, 4), torch.rand(5)] for _ in range(4)]
        return [*lists, [], [torch.tensor(1.0), torch.tensor(1.0)]]

    def step(*lists: list[torch.Tensor]) -> None:
        getattr(torch, function)(
            *lists,
            lr=0.1,
            beta1=0.9,
            beta2=0.99,
            weight_decay=0.1,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    ours, theirs = tensors(), tensors()
    torch.compile(step, backend="pjrt", options={"fallback": "error"})(*ours)
    step(*theirs)
    assert_same(ours, theirs)


def test_gradients_are_clipped_by_operators_on_lists() -> None:
    model, other = models()
    clip = torch.compile(nn.utils.clip_grad_norm_, backend="pjrt", options={"fallback": "error"})
    norms = []
    for one, clipped in ((model, clip), (other, nn.utils.clip_grad_norm_)):
        torch.manual_seed(0)
        one(torch.randn(20, 150)).square().sum().backward()
        norms.append(clipped(one.parameters(), 0.1, foreach=True))
    assert_same(norms[0], norms[1])
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert_same(one.grad, two.grad)
