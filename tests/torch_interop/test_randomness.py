"""Random operators on the device: their distributions, and when numbers are new and when the same.

All seeds are fixed: a test that passes once passes always.
"""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pjrt_bridge.errors import HostFallbackWarning
from pjrt_bridge.torch_interop import compiled_graphs, explain
from pjrt_bridge.torch_interop.randomness.operators import draw_keys
from tests.torch_interop.faults import Faults
from tests.torch_interop.helpers import TRAINING, assert_compiled, assert_same, compiled, leaves

pytestmark = pytest.mark.usefixtures("fresh")

COUNT = 100_000
ZEROS = torch.zeros(COUNT)


# -- distributions ---------------------------------------------------------------------------------


CONTINUOUS: dict[str, tuple[Callable[[], Tensor], Any]] = {
    "rand": (lambda: torch.rand(COUNT), stats.uniform()),
    "rand64": (lambda: torch.rand(COUNT, dtype=torch.float64), stats.uniform()),
    "rand_like": (lambda: torch.rand_like(ZEROS.view(100, 1000)), stats.uniform()),
    "uniform_": (lambda: ZEROS.clone().uniform_(-3, 5), stats.uniform(-3, 8)),
    "randn": (lambda: torch.randn(COUNT), stats.norm()),
    "randn64": (lambda: torch.randn(COUNT, dtype=torch.float64), stats.norm()),
    "randn_like": (lambda: torch.randn_like(ZEROS), stats.norm()),
    "normal": (lambda: torch.normal(ZEROS + 2, 3.0), stats.norm(2, 3)),
    "normal_": (lambda: ZEROS.clone().normal_(2, 3), stats.norm(2, 3)),
    "normal of tensors": (lambda: torch.normal(ZEROS + 2, ZEROS + 3), stats.norm(2, 3)),
    "exponential": (lambda: ZEROS.clone().exponential_(0.5), stats.expon(scale=2)),
    "exponential64": (lambda: ZEROS.double().exponential_(), stats.expon()),
    "cauchy": (lambda: ZEROS.clone().cauchy_(1, 2), stats.cauchy(1, 2)),
    "log_normal": (lambda: ZEROS.clone().log_normal_(0.5, 0.25), stats.lognorm(0.25, 0, np.e**0.5)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name: str) -> None:
    draw, expected = CONTINUOUS[name]
    found = compiled(draw)().double().flatten().numpy()
    assert found.shape == (COUNT,)
    assert stats.kstest(found, expected.cdf).pvalue > 1e-3
    # Neighbours, and halves, have nothing to do with each other.
    for one, other in ((found[:-1], found[1:]), np.split(found, 2)):
        assert abs(stats.spearmanr(one, other).statistic) < 0.02
    if np.isfinite(expected.var()):
        assert abs(found.mean() - expected.mean()) < 5 * expected.std() / COUNT**0.5
        assert found.var() == pytest.approx(expected.var(), rel=0.05)
    assert_compiled("inference")


DISCRETE: dict[str, tuple[Callable[[], Tensor], list[float]]] = {
    "randint": (lambda: torch.randint(0, 7, (COUNT,)), [1] * 7),
    "randint32": (lambda: torch.randint(0, 10, (COUNT,), dtype=torch.int32), [1] * 10),
    "randint_like": (lambda: torch.randint_like(ZEROS, 5), [1] * 5),
    "large range": (lambda: torch.randint(0, 6 << 60, (COUNT,)) >> 60, [1] * 6),
    "bernoulli": (lambda: torch.bernoulli(ZEROS + 0.3), [0.7, 0.3]),
    "bernoulli_": (lambda: ZEROS.clone().bernoulli_(0.9), [0.1, 0.9]),
    "bernoulli_ of a tensor": (lambda: ZEROS.clone().bernoulli_(ZEROS + 0.9), [0.1, 0.9]),
    "geometric": (
        lambda: ZEROS.clone().geometric_(0.5).clamp(max=6) - 1,
        [2.0**-n for n in (1, 2, 3, 4, 5, 5)],
    ),
    "dropout": (lambda: nn.functional.dropout(ZEROS + 1, 0.25) / (4 / 3), [0.25, 0.75]),
    "one choice": (
        lambda: torch.multinomial(torch.tensor([1.0, 0, 3, 4]).expand(COUNT, 4), 1),
        [1, 0, 3, 4],
    ),
    "choices": (
        lambda: torch.multinomial(torch.tensor([1.0, 0, 3, 4]), COUNT, replacement=True),
        [1, 0, 3, 4],
    ),
    "first of a permutation": (
        lambda: torch.stack([torch.randperm(4) for _ in range(40)])[:, 0],
        [1] * 4,
    ),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions(name: str) -> None:
    draw, weights = DISCRETE[name]
    run = compiled(draw)
    found = torch.cat([run().flatten().round().long() for _ in range(5)])
    counts = np.bincount(found.numpy(), minlength=len(weights))
    expected = np.array(weights) / sum(weights) * len(found)
    assert len(counts) == len(weights)
    assert (counts[expected == 0] == 0).all()
    some = expected > 0
    assert stats.chisquare(counts[some], expected[some]).pvalue > 1e-3
    assert_compiled("inference")


def test_halves_have_as_many_bits_as_eager_gives_them() -> None:
    for dtype, bits in ((torch.float16, 11), (torch.bfloat16, 8)):
        found = compiled(lambda dtype=dtype: torch.rand(COUNT, dtype=dtype))()
        assert found.max() < 1
        assert torch.equal(found.double() * 2**bits, (found.double() * 2**bits).round())
        counts = np.bincount((found.double() * 8).long().numpy())
        assert stats.chisquare(counts).pvalue > 1e-3


def test_a_permutation_is_one() -> None:
    run = compiled(lambda: torch.randperm(1000))
    first, second = run(), run()
    assert not torch.equal(first, second)
    for found in (first, second):
        assert torch.equal(found.sort().values, torch.arange(1000))
    assert abs(stats.spearmanr(first, second).statistic) < 0.1
    assert abs(stats.spearmanr(first, np.arange(1000)).statistic) < 0.1


# -- when numbers are new, and when they are the same ----------------------------------------------


def everything(x: Tensor) -> Any:
    return (
        torch.rand(3),
        torch.rand(3),
        torch.randn_like(x),
        torch.randint(0, 1 << 40, (5,)),
        nn.functional.dropout(x + 1, 0.5),
        torch.randperm(30),
        torch.bernoulli(x.sigmoid()),
        x.clone().exponential_(),
        torch.multinomial(x.softmax(-1), 2),
    )


def test_each_call_draws_anew_and_compiles_nothing() -> None:
    run, x = compiled(everything), torch.randn(4, 5)
    calls = [run(x) for _ in range(5)]
    assert_compiled("inference")
    for position, name in enumerate(("rand", "rand", "randn", "randint", "dropout", "randperm")):
        drawn = {tuple(call[position].flatten().tolist()) for call in calls}
        assert len(drawn) == len(calls), name
    assert not torch.equal(calls[0][0], calls[0][1])


def test_the_seed_decides() -> None:
    run, x = compiled(everything), torch.randn(4, 5)

    def drawn(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return [run(x), run(x)]

    assert_same(drawn(1), drawn(1), rtol=0, atol=0)
    assert not torch.equal(drawn(1)[0][0], drawn(2)[0][0])
    before = drawn(1)
    torch.compiler.reset()
    run = compiled(everything)
    assert_same(drawn(1), before, rtol=0, atol=0)


def test_the_state_can_be_kept_and_set() -> None:
    run, x = compiled(everything), torch.randn(4, 5)
    run(x)
    state = torch.get_rng_state()
    first = run(x)
    after = torch.get_rng_state()
    assert not torch.equal(state, after)
    torch.set_rng_state(state)
    assert_same(run(x), first, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), after)
    with torch.random.fork_rng():
        run(x)
    assert torch.equal(torch.get_rng_state(), after)


_SCRIPT = """
import hashlib, torch
from tests.torch_interop.test_randomness import digest
print(digest())
"""


def digest() -> str:
    """Of the exact numbers that a compiled function draws."""

    def exact(x: Tensor) -> Any:
        return torch.rand(50), torch.randint(0, 1 << 40, (50,)), nn.functional.dropout(x, 0.5)

    torch.manual_seed(11)
    found = compiled(exact)(torch.ones(50))
    return hashlib.sha256(b"".join(item.numpy().tobytes() for item in found)).hexdigest()


def test_other_processes_draw_the_same() -> None:
    path = os.pathsep.join(item for item in sys.path if item)
    there = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"},
    )
    assert there.stdout.strip() == digest()


def test_who_draws_nothing_leaves_the_generator_alone() -> None:
    run = compiled(lambda x: nn.functional.dropout(x, 0.5, training=False) + 1)
    state = torch.get_rng_state()
    run(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_threads_draw_independently() -> None:
    run = compiled(lambda x: torch.rand(64) + x)
    run(torch.zeros(64))
    found: list[tuple[float, ...]] = []

    def work() -> None:
        found.extend(tuple(run(torch.zeros(64)).tolist()) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 200
    assert stats.kstest(np.array(found).ravel(), "uniform").pvalue > 1e-3


# -- forward and backward --------------------------------------------------------------------------


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
    dropped = y == torch.tensor(0.0).cos().sin()
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
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
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


@pytest.mark.parametrize("checkpoints", [False, True])
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


# -- what else there is ----------------------------------------------------------------------------


def test_writing_into_arguments() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.uniform_(2, 3)
        y[1:].normal_()
        return x.sum() + y.sum()

    run = compiled(function)
    x, y = torch.zeros(200), torch.zeros(200)
    total = run(x, y)
    assert 2 <= x.min() < 2.1 < 2.9 < x.max() < 3
    assert y[0] == 0
    assert stats.kstest(y[1:].numpy(), "norm").pvalue > 1e-3
    assert_same(total, x.sum() + y.sum())
    assert_compiled("inference")


def test_initialization() -> None:
    layer = nn.Linear(300, 200)

    def function() -> None:
        with torch.no_grad():
            nn.init.kaiming_uniform_(layer.weight, a=5**0.5)
            nn.init.trunc_normal_(layer.bias, std=0.5, a=-0.5, b=0.5)

    compiled(function)()
    first = layer.weight.detach().clone()
    compiled(function)()
    assert not torch.equal(layer.weight, first)
    bound = 300**-0.5
    scaled = layer.weight.detach().flatten().numpy() / bound / 2 + 0.5
    assert stats.kstest(scaled, "uniform").pvalue > 1e-3
    assert 0.3 < layer.bias.abs().max() <= 0.5


def test_sizes_that_differ_from_call_to_call() -> None:
    def function(x: Tensor) -> Any:
        n = x.shape[0]
        return (
            torch.rand(n, 2),
            torch.randperm(n),
            torch.randint(0, n, (n,)),
            nn.functional.dropout(x, 0.5),
        )

    run = torch.compile(function, backend="pjrt", dynamic=True, options={"fallback": "error"})
    for n in (5, 9, 5):
        x = torch.ones(n, requires_grad=True)
        uniform, order, integers, dropped = run(x)
        assert uniform.shape == (n, 2)
        assert torch.equal(order.sort().values, torch.arange(n))
        assert 0 <= integers.min() <= integers.max() < n
        dropped.sum().backward()
        assert_same(x.grad, dropped)
    assert {graph.on_device for graph in compiled_graphs()} == {1}


def test_several_segments_share_no_numbers() -> None:
    def function(x: Tensor) -> Tensor:
        y = nn.functional.dropout(x.exp(), 0.5)
        z = torch.linalg.eigvalsh(torch.diag(y))
        return nn.functional.dropout(y * z.sum().sign(), 0.5) + nn.functional.dropout(x, 0.5)

    run = compiled(function, fallback="host", host_ops=["aten._linalg_eigh"])
    x = torch.ones(200, requires_grad=True)
    y = run(x)
    y.sum().backward()
    assert isinstance(x.grad, Tensor)
    e = torch.e
    each = [a * 4 * e + b * 2 for a in (0, 1) for b in (0, 1)]
    counts = [int(torch.isclose(y, torch.tensor(value)).sum()) for value in each]
    assert sum(counts) == 200
    assert stats.chisquare(counts, [75, 75, 25, 25]).pvalue > 1e-3
    # The derivative of a * 4e * exp(x - 1) + b * 2x at 1 is the value there.
    assert_same(x.grad, y.detach(), rtol=1e-3, atol=1e-3)
    assert compiled_graphs()[0].on_device >= 2


def test_a_scalar_is_worth_a_launch() -> None:
    def function(x: Tensor) -> Any:
        return torch.rand(()), torch.linalg.eigvalsh(x)

    run = compiled(function, host_ops=["aten._linalg_eigh"])
    run(torch.eye(3))
    (graph,) = compiled_graphs()
    (device,) = (segment for segment in graph.segments if segment.placement == "device")
    assert "aten.rand.default" in device.operators


@pytest.mark.parametrize("when", ["start", "end"])
def test_pytorch_draws_the_same_numbers_where_the_device_fails(faults: Faults, when: Any) -> None:
    run, x = compiled(everything, fallback="host"), torch.randn(4, 5)

    def drawn() -> Any:
        torch.manual_seed(3)
        return leaves(run(x))

    expected = drawn()
    faults.failing = ("inference", when)
    with pytest.warns(HostFallbackWarning, match="it failed on the device"):
        found = drawn()
    assert_same(found, expected, rtol=1e-6, atol=1e-6)
    exact = (0, 1, 3, 4, 5, 6)
    assert all(torch.equal(found[at], expected[at]) for at in exact)


def test_what_the_host_is_asked_to_draw_is_eagers() -> None:
    def function(x: Tensor) -> Any:
        return torch.rand(5) + x, torch.randn(5) + x

    run = compiled(function, host_ops=["aten.rand"])
    torch.manual_seed(1)
    first, _ = run(torch.zeros(5))
    torch.manual_seed(1)
    # Keys are drawn before all else.
    draw_keys(1)
    assert_same(first, torch.rand(5))
    (graph,) = compiled_graphs()
    (obstacle,) = graph.obstacles
    assert (obstacle.operator, obstacle.kind) == ("aten.rand.default", "requested")


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_what_eager_refuses_is_refused_in_its_words() -> None:
    cases: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.exp().exponential_(-1.0),
        lambda x: torch.randint(0, 300, (4,), dtype=torch.uint8) + x,
        lambda x: x.exp().uniform_(2, 1),
    ]
    for function in cases:
        with pytest.raises(RuntimeError) as theirs:
            function(torch.zeros(4))
        with pytest.raises(RuntimeError) as ours:
            compiled(function, fallback="host")(torch.zeros(4))
        assert str(theirs.value).splitlines()[0] in str(ours.value)


def test_samples_that_take_many_numbers_stay_in_pytorch_with_a_reason() -> None:
    run = compiled(lambda x: torch.poisson(x.exp()).sin(), fallback="host")
    x = torch.randn(50)
    torch.manual_seed(2)
    with pytest.warns(HostFallbackWarning, match="how many random numbers a sample takes"):
        found = run(x)
    torch.manual_seed(2)
    assert_same(found, torch.poisson(x.exp()).sin())


def test_reports_name_the_operators_of_the_user() -> None:
    report = explain(lambda x: nn.functional.dropout(x, 0.5) + torch.rand(4), torch.ones(4))
    (segment,) = report.segments
    assert segment.placement == "device"
    assert set(segment.operators) == {
        "aten.native_dropout.default",
        "aten.rand.default",
        "aten.add.Tensor",
    }
    assert "pjrt_bridge" not in str(report)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_data_decides() -> None:
    def function(x: Tensor) -> Tensor:
        return nn.functional.dropout(x[x > 0], 0.5)

    for options in ({}, {"buckets": [64]}):
        run = torch.compile(function, backend="pjrt", fullgraph=True, options=options)
        for count in (40, 70, 40):
            x = torch.randn(count)
            y = run(x)
            kept = x[x > 0]
            assert y.shape == kept.shape
            assert ((y == 0) | torch.isclose(y, 2 * kept)).all()
            assert 0 < (y == 0).sum() < len(y)
        torch.compiler.reset()
