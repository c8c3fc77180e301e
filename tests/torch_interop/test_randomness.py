"""Random operators on the device: when numbers are new, and when they are the same.

All seeds are fixed: a test that passes once passes always.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from pjrt_bridge.errors import HostFallbackWarning
from pjrt_bridge.torch_interop import compiled_graphs, explain
from pjrt_bridge.torch_interop.randomness.operators import draw_keys
from tests.faults.segments import Faults
from tests.torch_interop.helpers import assert_compiled, assert_same, compiled, in_threads, leaves

pytestmark = pytest.mark.usefixtures("fresh")


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

    in_threads(work, [()] * 4)
    assert len(set(found)) == len(found) == 200
    assert stats.kstest(np.array(found).ravel(), "uniform").pvalue > 1e-3


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


def test_dropout_hands_on_what_is_empty() -> None:
    x = torch.ones(0, 3)
    assert compiled(lambda x: nn.functional.dropout(x, 0.5))(x) is x


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
    (reason,) = graph.fallback_reasons
    assert (reason.operator, reason.kind) == ("aten.rand.default", "requested")


@pytest.mark.parametrize(
    "draw",
    [torch.rand_like, lambda x: torch.nn.functional.dropout(x, 0.5), lambda x: torch.randperm(3)],
    ids=["rand_like", "dropout", "randperm"],
)
def test_what_the_host_draws_can_be_resized(draw: Any) -> None:
    result = compiled(draw, min_segment=9)(torch.ones(3))
    assert result.untyped_storage().resizable()
    result.resize_(5)


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
