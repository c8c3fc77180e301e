"""What is drawn on the device has the distribution that torch documents.

All seeds are fixed: a test that passes once passes always.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from tests.torch_interop.helpers import assert_compiled, compiled

pytestmark = pytest.mark.usefixtures("fresh")

COUNT = 100_000
ZEROS = torch.zeros(COUNT)


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
