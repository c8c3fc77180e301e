"""Positions and sizes that are calculated from a size and turn out to be the same in all calls."""

from collections.abc import Callable

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same

pytestmark = pytest.mark.usefixtures("fresh")

SIZES = (5, 6, 9, 30, 27, 28, 25, 31, 24)

FIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "all": lambda x, y: x * y[-x.shape[0] :],
    "all-alone": lambda x, y: y[-x.shape[0] :],
    "all-copied": lambda x, y: (x * y[-x.shape[0] :].contiguous()).sum(0),
    "behind-the-second": lambda x, y: y[2 - x.shape[0] :] * x[2:],
    "before-all": lambda x, y: (x * y[-x.shape[0] - 3 :]).cumsum(0),
    "every-second": lambda x, y: y[1 - x.shape[0] :: 2].softmax(0) + x.sum(),
    "first": lambda x, y: x + y[-x.shape[0]],
    "second": lambda x, y: x.sum(0) * y[1 - x.shape[0]],
    "of-columns": lambda x, y: y.t()[:, -x.shape[0] :] @ x,
    "written": lambda x, y: torch.slice_scatter(x, y * 2, 0, -x.shape[0]),
    "one-written": lambda x, y: torch.select_scatter(x, y[0] * 2, 0, 1 - x.shape[0]),
}


@pytest.mark.parametrize("name", FIXED)
def test_a_position_that_is_known_after_all(name: str) -> None:
    function = FIXED[name]
    run = torch.compile(function, backend="pjrt")
    for rows in SIZES:
        torch.manual_seed(rows)
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        assert_same(run(x, y), function(x, y), rtol=1e-5, atol=1e-5)
    assert len(compiled_graphs()) <= 5
    assert not any("not padded" in (graph.trigger or "") for graph in compiled_graphs())


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As decoders with a state mask what they read last."""
    return x * mask[:, -x.shape[1] :].unsqueeze(-1)


def test_two_sizes_that_change() -> None:
    run = torch.compile(masked, backend="pjrt")
    for batch, length in ((2, 7), (3, 11), (4, 26), (4, 25), (3, 23), (4, 20)):
        x, mask = torch.randn(batch, length, 8), torch.rand(batch, length)
        assert_same(run(x, mask), masked(x, mask), rtol=1e-5, atol=1e-5)
    assert len(compiled_graphs()) <= 4


@pytest.mark.parametrize("name", FIXED)
def test_its_gradients(name: str) -> None:
    function = FIXED[name]
    run = torch.compile(function, backend="pjrt")
    for rows in SIZES:
        torch.manual_seed(rows)
        ours = [torch.randn(rows, 4, requires_grad=True) for _ in range(2)]
        theirs = [item.detach().clone().requires_grad_() for item in ours]
        found, expected = run(*ours), function(*theirs)
        assert_same(found, expected, rtol=1e-5, atol=1e-5)
        found.square().sum().backward()
        expected.square().sum().backward()
        for one, other in zip(ours, theirs, strict=True):
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None and other.grad is not None:
                assert_same(one.grad, other.grad, rtol=1e-5, atol=1e-5)
    assert len(compiled_graphs()) <= 10
    assert not any("not padded" in (graph.trigger or "") for graph in compiled_graphs())


def in_one_chunk(x: torch.Tensor) -> torch.Tensor:
    """Torch finds that there is one chunk after it has promised the view."""
    chunks = torch.nn.functional.pad(x, (0, (64 - x.shape[1] % 64) % 64))
    chunks = chunks.reshape(x.shape[0], -1, 64).cumsum(2)
    return (chunks * chunks.mean(1, keepdim=True)).flatten(1)[:, : x.shape[1]]


def test_a_number_of_chunks_that_is_known_after_all() -> None:
    run = torch.compile(in_one_chunk, backend="pjrt")
    for batch, length in ((2, 7), (3, 11), (4, 26), (4, 25), (3, 23), (4, 64), (2, 63)):
        x = torch.randn(batch, length)
        assert_same(run(x), in_one_chunk(x), rtol=1e-5, atol=1e-5)
    assert len(compiled_graphs()) <= 5
    for length in (65, 100, 128, 129, 70):
        x = torch.randn(3, length)
        assert_same(run(x), in_one_chunk(x), rtol=1e-5, atol=1e-5)


def by_heads(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Torch finds that both batches are the same after it has promised the view."""
    bias = mask[:, None].expand(-1, 4, -1).reshape(-1, 1, mask.shape[1])
    return (x + bias.reshape(x.shape[0], -1, *bias.shape[1:])).softmax(-1)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_number_of_heads_that_is_known_after_all(swapped: bool) -> None:
    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return by_heads(x, mask)

    def other(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return by_heads(x, mask)

    run = torch.compile(other if swapped else function, backend="pjrt")
    for batch, length in ((2, 7), (3, 11), (4, 26), (4, 25), (3, 23), (4, 20), (7, 30)):
        x, mask = torch.randn(batch, 4, length, length), torch.randn(batch, length)
        found = run(mask, x) if swapped else run(x, mask)
        assert_same(found, by_heads(x, mask), rtol=1e-5, atol=1e-5)
    assert len(compiled_graphs()) <= 5
    assert not any("not padded" in (graph.trigger or "") for graph in compiled_graphs())
