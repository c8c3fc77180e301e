"""Attention that is written with products and a softmax: numbers, gradients, which is joined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.torch_interop.helpers import compiled
from tests.torch_interop.passes.attention import everywhere

BATCH, HEADS, LENGTH, SIZE = 2, 3, 20, 8

Written = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True, name="joined")
def _joined() -> Iterator[list[bool]]:
    """An item for each attention that is emitted."""
    with everywhere.joined() as emitted:
        yield emitted


def heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], HEADS, SIZE).transpose(1, 2)


def together(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def weighted(q: Tensor, k: Tensor, v: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    q, k, v = map(heads, (q, k, v))
    scores = change(q @ k.transpose(-2, -1) / math.sqrt(SIZE))
    return together(scores.softmax(-1) @ v)


def einsums(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (x.view(BATCH, LENGTH, HEADS, SIZE) for x in (q, k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 0.3
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)


def three_dimensions(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (heads(x).reshape(BATCH * HEADS, LENGTH, SIZE) for x in (q, k, v))
    added = mask.expand(BATCH, HEADS, LENGTH, -1).reshape(BATCH * HEADS, LENGTH, LENGTH)
    scores = torch.baddbmm(added.float(), q, k.transpose(1, 2), alpha=0.3)
    found = functional.softmax(scores, dim=-1) @ v
    return together(found.view(BATCH, HEADS, LENGTH, SIZE))


def in_float32(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (heads(x).bfloat16() for x in (q, k, v))
    scores = (q * SIZE**-0.5) @ k.mT
    return together(scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v).float()


def one_matrix(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q[0] @ k[0].T) * 0.1).softmax(-1) @ v[0]


def hidden_by(number: float) -> Written:
    return lambda q, k, v, mask: weighted(q, k, v, lambda s: s.masked_fill(mask == 0, number))


def causal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    below = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return weighted(q, k, v, lambda s: torch.where(below, s, -1e9))


def slopes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    at = torch.arange(LENGTH)
    far = (at - at[:, None]).abs() * -torch.exp2(-torch.arange(1.0, HEADS + 1))[:, None, None]
    return weighted(q, k, v, lambda s: s + far)


FORMS: dict[str, Written] = {
    "hidden by -inf": hidden_by(-math.inf),
    "hidden by -1e9": hidden_by(-1e9),
    "hidden by the least number": hidden_by(torch.finfo(torch.float32).min),
    # In 16 bits it is -inf.
    "replaced by the least number": lambda q, k, v, mask: weighted(
        q, k, v, lambda s: torch.where(mask != 0, s, torch.finfo(torch.float32).min)
    ),
    "causal": causal,
    "slopes": slopes,
    "einsums": einsums,
    "in float32": in_float32,
}
ADDED: dict[str, Written] = {
    "added -inf": lambda q, k, v, mask: weighted(
        q, k, v, lambda s: s + torch.zeros_like(mask).masked_fill(mask == 0, -math.inf)
    ),
    "added numbers": lambda q, k, v, mask: weighted(q, k, v, lambda s: s + (1 - mask) * -1e9),
    "both": lambda q, k, v, mask: weighted(
        q, k, v, lambda s: (s + mask * 0.5).masked_fill(mask == 0, -math.inf)
    ),
    "hidden by two": lambda q, k, v, mask: weighted(
        q, k, v, lambda s: s.masked_fill(mask == 0, -math.inf).masked_fill(mask.mT == 0, -1e9)
    ),
    "one matrix": one_matrix,
    "three dimensions": three_dimensions,
}

MASKS: dict[str, Callable[[], Tensor]] = {
    "causal": lambda: torch.ones(1, 1, LENGTH, LENGTH).tril(),
    "padding": lambda: (torch.arange(LENGTH) < LENGTH - 5).float().expand(BATCH, 1, 1, LENGTH),
    "queries without keys": lambda: torch.ones(LENGTH, LENGTH).index_fill(
        0, torch.tensor([0, 7]), 0.0
    )[None, None],
}


def given() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(BATCH, LENGTH, HEADS * SIZE, generator=generator) for _ in range(3)]


def found_by(
    function: Written, mask: Tensor, *, trains: bool, autocast: bool = False
) -> list[Tensor]:
    leaves = [x.requires_grad_(trains) for x in given()]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = function(*leaves, mask)
    if not trains:
        return [result]
    slope = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
    return [result.detach(), *torch.autograd.grad(result.float(), leaves, slope)]


def assert_like_eager(
    function: Written, mask: Tensor, tolerance: float, **how: bool
) -> list[Tensor]:
    wanted = found_by(function, mask, **how)
    found = found_by(compiled(function), mask, **how)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        limit = tolerance * float(other.nan_to_num().abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=limit, equal_nan=True)
    return found


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", FORMS)
def test_joined(form: str, mask: str, trains: bool, autocast: bool, joined: list[bool]) -> None:
    if autocast and form in ("hidden by the least number", "in float32"):
        pytest.skip("PyTorch refuses the number in bfloat16, or autocast changes nothing")
    rounded = autocast or form == "in float32"
    assert_like_eager(
        FORMS[form], MASKS[mask](), 0.03 if rounded else 3e-6, trains=trains, autocast=autocast
    )
    assert joined


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", ADDED)
def test_joined_without_gradients(form: str, mask: str, joined: list[bool]) -> None:
    assert_like_eager(ADDED[form], MASKS[mask](), 3e-6, trains=False)
    assert joined


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", ["added -inf", "added numbers", "both", "hidden by two"])
def test_gradients_that_the_operator_does_not_have(
    form: str, mask: str, joined: list[bool]
) -> None:
    """Where a mask may leave nothing to a query but large negative numbers."""
    assert_like_eager(ADDED[form], MASKS[mask](), 3e-6, trains=True)
    if form != "both":
        assert not joined


def returns_weights(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    weights = (heads(q) @ heads(k).mT).softmax(-1)
    return together(weights @ heads(v)) + weights.sum()


def over_queries(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return together((heads(q) @ heads(k).mT).softmax(-2) @ heads(v))


def wider_values(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (heads(q) @ heads(k).mT).softmax(-1) @ torch.cat([heads(v), heads(v)], -1)


def exchanged(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (heads(q) @ heads(k).mT).transpose(0, 1).reshape(BATCH, HEADS, LENGTH, LENGTH)
    return together(scores.softmax(-1) @ heads(v))


OTHERS: dict[str, Written] = {
    "weights are read": returns_weights,
    "over queries": over_queries,
    "wider values": wider_values,
    "other heads": exchanged,
    "scaled masks": lambda q, k, v, mask: weighted(q, k, v, lambda s: (s + mask) * 0.5),
    "hidden by a number of scores": hidden_by(-20.0),
    "hidden, and added to": lambda q, k, v, mask: weighted(
        q, k, v, lambda s: s.masked_fill(mask == 0, -1e9) + mask
    ),
    "squared": lambda q, k, v, mask: weighted(q, k, v, torch.square),
    "not a number": lambda q, k, v, mask: weighted(q, k, v, lambda s: s * math.nan),
}


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("form", OTHERS)
def test_what_is_something_else(form: str, trains: bool, joined: list[bool]) -> None:
    assert_like_eager(OTHERS[form], MASKS["queries without keys"](), 3e-6, trains=trains)
    assert not joined


def test_masks_that_are_trained(joined: list[bool]) -> None:
    """The operator gives no gradient of its mask."""
    bias = torch.linspace(-1, 1, LENGTH * LENGTH).view(1, 1, LENGTH, LENGTH)

    def biased(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return weighted(q, k, v, lambda s: s + mask)

    gradients = []
    for function in (biased, compiled(biased)):
        leaf = bias.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(*given(), leaf).square().sum(), [leaf])
        gradients.append(gradient)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert not joined


class Block(nn.Module):
    """Causal attention as in a small language model, with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE)
        self.dropout = nn.Dropout(0.2)
        self.register_buffer("mask", torch.ones(64, 64).tril().view(1, 1, 64, 64))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.project(x).split(x.shape[-1], 2))
        scores = q @ k.mT * (1.0 / math.sqrt(k.size(-1)))
        length = x.shape[1]
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        return x + together(self.dropout(functional.softmax(scores, dim=-1)) @ v)


def test_layers_and_lengths(joined: list[bool]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).eval()
    function = compiled(model)
    for length in (11, 17, 23, 30):
        x = torch.randn(2, length, HEADS * SIZE)
        found = []
        for called in (model, function):
            called(x).square().sum().backward()
            found.append([parameter.grad for parameter in model.parameters()])
            model.zero_grad()
            with torch.no_grad():
                found[-1].append(called(x))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert len(joined) >= 4


def test_dropout_of_weights_is_kept(joined: list[bool]) -> None:
    torch.manual_seed(0)
    block = Block()
    x = torch.randn(2, LENGTH, HEADS * SIZE)
    wanted = block.eval()(x)
    found = compiled(block.train())(x)
    assert not torch.allclose(found, wanted)
    assert not joined


def test_operators_that_stay_on_the_host(joined: list[bool]) -> None:
    function = FORMS["causal"]
    found = compiled(function, host_ops=["aten._softmax"], fallback="host")
    arguments = (*given(), MASKS["causal"]())
    torch.testing.assert_close(found(*arguments), function(*arguments))
    assert not joined


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_lengths_that_depend_on_data(joined: list[bool]) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        rows = k[:, seen], v[:, seen]
        return weighted(q, *rows, lambda scores: scores)

    results = []
    for called in (function, compiled(function, fallback="host")):
        leaves = [x.requires_grad_() for x in given()]
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            found = called(*leaves, torch.arange(LENGTH) % 3 > 0)
        results.append([found.detach(), *torch.autograd.grad(found.square().sum(), leaves)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2])
def test_strides_of_results_where_sizes_change(batch: int, joined: list[bool]) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, size: int) -> Tensor:
        q, k, v = (x.unflatten(-1, (heads, size)).transpose(1, 2) for x in (q, k, v))
        return (q @ k.mT).softmax(-1) @ v

    compiled = torch.compile(attention, backend="pjrt", dynamic=True)
    for queries, keys in ((5, 7), (6, 7)):
        q, k, v = (torch.randn(batch, rows, 16) for rows in (queries, keys, keys))
        k.requires_grad_()
        found, wanted = (function(q, k, v, 2, 8) for function in (compiled, attention))
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted)
    assert joined
