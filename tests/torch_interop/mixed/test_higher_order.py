"""Operators that take functions: control flow, checkpoints, autograd.Function."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_rows
from torch.utils.checkpoint import checkpoint

from tests.torch_interop.helpers import assert_same
from tests.torch_interop.mixed import operators as ops
from tests.torch_interop.mixed.support import check, device_segments, mixed

pytestmark = [
    pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning"),
    # Torch's own, while it traces maps and scans.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]


def branch(x: Tensor, w: Tensor) -> Tensor:
    y = x.exp() @ w
    z = torch.cond(y.sum() > 0, lambda y: y.sin() @ w, lambda y: (y.cos() @ w) * 2, (y,))
    return z.tanh() + x


def loop(x: Tensor, w: Tensor) -> Tensor:
    def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, (x @ w).tanh()

    count, y = while_loop(lambda i, x: i < 3, body, (torch.zeros((), dtype=torch.int64), x.exp()))
    return y.cos() * count


def scanned(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    def combine(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        following = (carry + row).tanh()
        return following, following @ w

    last, rows = scan(combine, x[0].exp(), x.cos())
    return last * 2, rows.sum(0) + 1


def mapped(x: Tensor, w: Tensor) -> Tensor:
    return map_rows(lambda row, w: row @ w + 1, x.exp(), w).cos()


ON_HOST = [
    "higher_order.cond",
    "higher_order.while_loop",
    "higher_order.scan",
    "higher_order.map_impl",
]


@pytest.mark.parametrize("function", [branch, loop, scanned])
def test_control_flow(function: Callable[..., Any]) -> None:
    run = mixed(function, fullgraph=True, options={"host_ops": ON_HOST})
    for sign in (1, -1):
        x, w = torch.randn(4, 4), sign * torch.rand(4, 4)
        with torch.no_grad():
            assert_same(run(x, w), function(x, w))
    assert sum(device_segments()) >= 2, device_segments()


@pytest.mark.parametrize("function", [mapped, loop])
def test_gradients_of_control_flow(function: Callable[..., Any]) -> None:
    def step(run: Callable[..., Any], sign: int) -> list[Any]:
        torch.manual_seed(2)
        x = torch.randn(4, 4, requires_grad=True)
        w = (sign * torch.rand(4, 4)).requires_grad_()
        results = run(x, w)
        results = results if isinstance(results, tuple) else (results,)
        sum(result.square().sum() for result in results).backward()
        return [*results, x.grad, w.grad]

    run = mixed(function, fullgraph=True, options={"host_ops": ON_HOST})
    for sign in (1, -1):
        assert_same(step(run, sign), step(function, sign), rtol=1e-3)
    assert len(device_segments()) == 2
    assert all(device_segments()), device_segments()


def test_a_branch_around_a_custom_operator() -> None:
    def function(x: Tensor, flag: Tensor) -> Tensor:
        y = torch.cond(flag, lambda x: ops.twice(x).sin(), lambda x: x - 1, (x.exp(),))
        return y.cos()

    run = mixed(function, fullgraph=True)
    for flag in (True, False):
        check(function, torch.randn(3), torch.tensor(flag), run=run)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def causal(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return torch.where(i >= j, score, -float("inf"))

        return flex_attention(q.cos(), k, v, score_mod=causal) * 2

    q, k, v = torch.randn(3, 1, 2, 16, 16)
    run = mixed(function, fullgraph=True)
    with torch.no_grad():
        assert_same(run(q, k, v), function(q, k, v))
    assert sum(device_segments()) >= 1


class Block(nn.Module):
    """Layers with something that stays in PyTorch among them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(dropout))
        self.last = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(ops.squared(self.inner(x))) + x


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_checkpoints(dropout: float) -> None:
    torch.manual_seed(5)
    blocks = nn.ModuleList([Block(dropout) for _ in range(2)])

    def function(x: Tensor) -> Tensor:
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x.square().mean()

    def step(run: Callable[..., Tensor], seed: int) -> list[Any]:
        torch.manual_seed(seed)
        blocks.zero_grad()
        x = torch.randn(5, 6, requires_grad=True)
        loss = run(x)
        loss.backward()
        state = torch.get_rng_state()
        return [
            loss,
            x.grad,
            state,
            *(p.grad.clone() for p in blocks.parameters() if p.grad is not None),
        ]

    # Torch keeps the generator's state for what PyTorch draws again.
    run = mixed(function, options={"host_ops": ["aten.native_dropout"]})
    for seed in range(2):
        assert_same(step(run, seed), step(function, seed), rtol=1e-3)
    assert len(device_segments()) == 2
    assert all(device_segments())


class Doubled(torch.autograd.Function):
    """Its backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return ops.twice(x.exp()), x.cos()

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return ops.twice(first * x) * ctx.scale + second, None


def test_an_autograd_function() -> None:
    def function(x: Tensor) -> Tensor:
        first, second = Doubled.apply(x * 2, 0.5)
        return (first + second).tanh().sum()

    def step(run: Callable[..., Tensor]) -> list[Any]:
        torch.manual_seed(0)
        x = torch.randn(3, 4, requires_grad=True)
        loss = run(x)
        loss.backward()
        return [loss, x.grad]

    run = mixed(function)
    for _ in range(2):
        assert_same(step(run), step(function))
    assert len(device_segments()) == 2
    assert all(device_segments())
