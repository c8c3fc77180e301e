"""Backward has the numbers of forward: saved, or computed again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import TRAINING, assert_compiled, assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh")


def test_backward_has_the_mask_of_forward() -> None:
    run = compiled(lambda x: nn.functional.dropout(x.exp(), 0.4).sin())
    x = torch.randn(50, 40, requires_grad=True)
    for _ in range(3):
        x.grad = None
        y = run(x)
        y.sum().backward()
        expected = torch.where(y == 0, 0, (x.exp() / 0.6).cos() * x.exp() / 0.6)
        assert_same(x.grad, expected)
    assert_compiled(*TRAINING)


@torch._functorch.config.patch(aggressive_recomputation=True)
def test_what_is_computed_again_without_a_checkpoint_is_the_same() -> None:
    run = compiled(lambda x: (nn.functional.dropout(x * 2, 0.4) * torch.rand_like(x)).cos().sin())
    x = torch.ones(400, requires_grad=True)
    torch.manual_seed(3)
    y = run(x)
    y.sum().backward()
    backward = compiled_graphs()[-1]
    assert "aten.native_dropout.default" in backward.segments[0].operators
    dropped = torch.isclose(y, torch.tensor(0.0).cos().sin(), rtol=0, atol=1e-7)
    assert 100 < dropped.sum() < 220
    assert torch.equal(x.grad == 0, dropped)


def test_backward_twice_has_the_same_mask() -> None:
    run = compiled(lambda x: nn.functional.dropout(x * 2, 0.4))
    x = torch.randn(500, requires_grad=True)
    y = run(x).sum()
    first, second = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


Run = Callable[..., Any]


@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_computes_the_same_numbers_again(preserve: bool, reentrant: bool) -> None:
    def inner(x: Tensor) -> Tensor:
        y = nn.functional.dropout(x.exp(), 0.4) * torch.rand_like(x)
        return (y + 0.1 * torch.randn_like(x)).tanh() * y

    def function(x: Tensor) -> Tensor:
        kept: Tensor = checkpoint(inner, x, use_reentrant=reentrant, preserve_rng_state=preserve)
        return kept

    x = torch.randn(300, requires_grad=True)

    def step(run: Run) -> list[Tensor]:
        torch.manual_seed(3)
        y = run(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        return [y, grad]

    found = step(compiled(function))
    forward, backward = compiled_graphs()
    recomputed = {
        "aten.native_dropout.default",
        "aten.rand_like.default",
        "aten.randn_like.default",
    }
    for graph in (forward, backward):
        assert graph.on_device == 1
        assert recomputed <= set(graph.segments[0].operators)
    # Without a checkpoint there is nothing to compute again.
    assert_same(found, step(compiled(inner)))


# Torch's own, while it traces autograd functions.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_numbers_that_backward_alone_draws() -> None:
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad + torch.rand_like(grad)

    run = compiled(lambda x: Noisy.apply(x * 2).cos())
    x = torch.zeros(200, requires_grad=True)
    drawn = []
    for _ in range(2):
        x.grad = None
        run(x).sum().backward()
        assert isinstance(x.grad, Tensor)
        drawn.append(x.grad / 2)
    assert not torch.equal(*drawn)
    for found in drawn:
        assert 0 <= found.min() < 0.05 < 0.95 < found.max() < 1


class Block(nn.Module):
    """A transformer's layer, with dropout in all the usual places."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], 3, self.heads, -1)
        q, k, v = self.attention(self.norms[0](x)).view(shape).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0
        )
        x = x + self.drop(self.project(y.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.inner(self.norms[1](x)))


class Model(nn.Module):
    def __init__(self, *, checkpoints: bool, layers: int = 2) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.embed, self.drop = nn.Embedding(31, 32), nn.Dropout(0.1)
        self.blocks = nn.ModuleList([Block(32, 4) for _ in range(layers)])
        self.head = nn.Linear(32, 31)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.embed(tokens))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return nn.functional.cross_entropy(
            self.head(x[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )


@pytest.mark.parametrize(
    "checkpoints", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True)]
)
def test_a_language_model_trains_on_the_device(checkpoints: bool) -> None:
    torch.manual_seed(0)
    model = Model(checkpoints=checkpoints)
    run = compiled(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = torch.arange(4)[:, None] * 3 + torch.arange(16)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = run(tokens % 31)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert_compiled(*TRAINING)
    assert losses[-1] < 0.5 * losses[0]
    model.eval()
    with torch.no_grad():
        assert_same(run(tokens % 31), model(tokens % 31))


def test_gradients_are_those_of_the_numbers_that_were_drawn() -> None:
    """Finite differences in float64, with the generator set back before each evaluation."""
    model = Model(checkpoints=True, layers=1).double()
    run = compiled(model)
    tokens = torch.arange(16)[None] % 31

    def loss() -> Tensor:
        torch.manual_seed(5)
        found: Tensor = run(tokens)
        return found

    loss().backward()
    for parameter in (model.embed.weight, model.blocks[0].attention.weight):
        assert parameter.grad is not None
        direction = torch.randn_like(parameter)
        values = []
        for step in (1e-5, -2e-5):
            with torch.no_grad():
                parameter += step * direction
            values.append(loss().item())
        slope = (values[0] - values[1]) / 2e-5
        assert slope == pytest.approx((parameter.grad * direction).sum().item(), rel=1e-4)


def test_checkpointed_attention_is_computed_again_on_the_device() -> None:
    """Torch says of attention that it is random, also where it has no dropout."""
    to_heads = nn.Linear(16, 48)

    def attend(x: Tensor) -> Tensor:
        heads = to_heads(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(*heads.unbind(), is_causal=True)
        return nn.functional.dropout(y.transpose(1, 2).flatten(2), 0.2)

    def function(x: Tensor) -> Tensor:
        for _ in range(2):
            kept: Tensor = checkpoint(attend, x, use_reentrant=False)
            x = x + kept
        return x

    x = torch.randn(2, 8, 16, requires_grad=True)
    run = compiled(function)
    torch.manual_seed(3)
    (grad,) = torch.autograd.grad(run(x).square().sum(), x)
    assert_compiled(*TRAINING)
    # Twice the same numbers, by central differences along one direction.
    direction = torch.randn_like(x)

    def loss(step: float) -> Tensor:
        torch.manual_seed(3)
        with torch.no_grad():
            return run(x + step * direction).square().sum().double()

    slope = (loss(1e-2) - loss(-1e-2)) / 2e-2
    assert_same((grad * direction).sum().double(), slope, rtol=1e-2)
