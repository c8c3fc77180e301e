"""Sizes that change in graphs over resident tensors: few programs, and nothing is copied back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812

from pjrt_bridge.errors import BridgeWarning
from pjrt_bridge.mixed import padded_sizes
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.compiling import many_sizes
from pjrt_bridge.torch_interop.resident.storages import padded, transfer
from tests.torch_interop.helpers import assert_same

pytestmark = pytest.mark.usefixtures("fresh")

NUMBER = 8
"""Bytes of a size that a program is given."""


class Words(nn.Module):
    """The loss of a small model of texts of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.mix = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 30)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        place = torch.arange(words.shape[1], device=words.device)
        scores = (x @ self.mix(x).mT).masked_fill(place[:, None] < place, float("-inf"))
        x = self.norm(x + scores.softmax(-1) @ x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Crossed:
    """Bytes that crossed between host and device since it was made or asked."""

    def __init__(self) -> None:
        self._last = (0, 0)
        self.since()

    def since(self) -> tuple[int, int]:
        """Bytes to the device, and bytes to the host."""
        now = (transfer.COUNTS.to_device, transfer.COUNTS.to_host)
        found = (now[0] - self._last[0], now[1] - self._last[1])
        self._last = now
        return found


@pytest.fixture
def small_programs() -> Iterator[Callable[[], int]]:
    """How many programs that pad and cut were made."""
    padded._program.cache_clear()
    yield lambda: padded._program.cache_info().misses
    padded._program.cache_clear()


def texts(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(30, (2, length)), torch.randint(30, (2, length))


def test_a_training_loop_moves_its_batches(small_programs: Callable[[], int]) -> None:
    host = Words()
    model = copy.deepcopy(host).to("pjrt")
    run = torch.compile(model, backend="pjrt")
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (host, model)]
    random, crossed, views = Random(0), Crossed(), len(transfer._programs)
    for step in range(50):
        batch = texts(random.randint(2, 200))
        losses = []
        for optimizer, loss_of, device in zip(
            optimizers, (host, run), ("cpu", "pjrt"), strict=True
        ):
            crossed.since()
            optimizer.zero_grad()
            loss = loss_of(*(each.to(device) for each in batch))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        to_device, to_host = crossed.since()
        if step > 8:
            # With their padding, to the next power of two above all lengths, and their sizes.
            columns = sum(each[:, 0].nbytes for each in batch)
            assert to_device <= 256 * columns + 8 * NUMBER
            assert to_host == 4
        assert abs(losses[0] - losses[1]) < 1e-4
    assert_same(
        [one.detach().cpu() for one in model.parameters()],
        [one.detach() for one in host.parameters()],
        rtol=1e-3,
        atol=1e-4,
    )
    assert len(compiled_graphs()) <= 2 * 9
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())
    assert small_programs() <= 2
    assert len(transfer._programs) == views


def test_what_graphs_hand_each_other_is_not_cut(small_programs: Callable[[], int]) -> None:
    first = torch.compile(lambda x: x.cumsum(1).exp(), backend="pjrt")
    second = torch.compile(lambda x: x / x.sum(1, keepdim=True), backend="pjrt")
    random = Random(0)
    for size in (random.randint(2, 100) for _ in range(40)):
        x = torch.rand(3, size) - 0.5
        found = second(first(x.to("pjrt"))).mean()
        expected = x.cumsum(1).exp()
        assert found.isfinite()
        handed = first(x.to("pjrt"))
        assert handed.shape == (3, size)
        assert handed.untyped_storage().nbytes() == 12 * size
        crossed = Crossed()
        made = second(handed)
        assert crossed.since() == (0, 0)
        assert_same(made.cpu(), expected / expected.sum(1, keepdim=True), rtol=1e-5, atol=1e-6)
    assert len(compiled_graphs()) <= 2 * 9


def test_a_cache_that_grows_is_cut_and_padded_by_few_programs(
    small_programs: Callable[[], int],
) -> None:
    """What a call gives is longer than the bucket that it was padded to, and the next takes it."""

    def step(cache: torch.Tensor, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache = torch.cat((cache, token), 1)
        return cache, (token @ cache.mT).softmax(-1) @ cache

    run = torch.compile(step, backend="pjrt")
    found, expected = torch.ones(2, 3, 4, device="pjrt"), torch.ones(2, 3, 4)
    for length in range(4, 80):
        token = torch.randn(2, 1, 4)
        found, ours = run(found, token.to("pjrt"))
        expected, theirs = step(expected, token)
        assert found.shape == (2, length, 4)
        assert_same(ours.cpu(), theirs, rtol=1e-5, atol=1e-5)
    assert_same(found.cpu(), expected, rtol=0, atol=0)
    assert len(compiled_graphs()) <= 5
    assert small_programs() <= 8


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "written": lambda x, y: (x.mul_(2).add_(y), x.sum(0)),
    "partly": lambda x, y: (x[1:-1].copy_(y[2:] * y.mean(0)), y.cumsum(0))[1],
    "returned": lambda x, y: (x.copy_(y.flip(0)), x[1:], y + x),
    "turned": lambda x, y: x.t().softmax(-1) @ y,
    "merged": lambda x, y: (x[:, None] + y).flatten(0, 1).cumsum(0),
    "permuted": lambda x, y: (x[:, None] * y).permute(2, 1, 0) * 2,
    "reduced": lambda x, y: (x.amax(0), y.std(0), x.sort(0).values),
    "made": lambda x, y: torch.arange(len(x), device=x.device)[:, None] * y,
}


def arguments(layout: str, rows: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    y = torch.randn(rows, 4).to(device)
    if layout == "columns":
        return torch.randn(4, rows).to(device).t(), y
    if layout == "part":
        return torch.randn(2 * rows, 6).to(device)[::2, 1:5], y
    return torch.randn(rows, 4).to(device), y


@pytest.mark.parametrize("layout", ["dense", "columns", "part"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_eager(name: str, layout: str) -> None:
    function = FUNCTIONS[name]
    run = torch.compile(function, backend="pjrt")
    for rows in (5, 6, 9, 30, 27, 3, 31, 4):
        ours, theirs = (arguments(layout, rows, device) for device in ("pjrt", "cpu"))
        found, expected = run(*ours), function(*theirs)
        for one, other in zip(_leaves(found), _leaves(expected), strict=True):
            assert one.stride() == other.stride()
            assert_same(one.cpu(), other, rtol=1e-5, atol=1e-5)
        assert_same([item.cpu() for item in ours], list(theirs), rtol=1e-5, atol=1e-5)
    assert len(compiled_graphs()) <= 6
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())


def _leaves(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


@settings(max_examples=3, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=4, max_size=8))
def test_any_sequence_of_sizes(sizes: list[tuple[int, int]]) -> None:
    torch.compiler.reset()

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.softmax(1).cumsum(0) - x.mean(0)).mT @ x

    run = torch.compile(function, backend="pjrt", dynamic=True)
    for shape in sizes:
        ours = torch.rand(shape, device="pjrt").requires_grad_()
        theirs = ours.detach().cpu().requires_grad_()
        found, expected = run(ours), function(theirs)
        assert_same(found.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-4)
        found.square().sum().backward()
        expected.square().sum().backward()
        assert ours.grad is not None
        assert theirs.grad is not None
        assert_same(ours.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-3)


def test_results_are_read_and_written_as_others_are() -> None:
    run = torch.compile(lambda x: x * 2, backend="pjrt", dynamic=True, options={"buckets": [8]})
    x = torch.arange(10.0).reshape(2, 5)
    found = run(x.to("pjrt"))
    assert found[1].tolist() == (2 * x)[1].tolist()
    found = run(x.to("pjrt"))
    found[0] = 7
    assert found.tolist() == [[7.0] * 5, (2 * x)[1].tolist()]
    assert run(found).tolist() == (2 * found.cpu()).tolist()
    found = run(x.to("pjrt"))
    copied = found.clone()
    found.add_(1)
    assert copied.tolist() == (2 * x).tolist()
    assert found.tolist() == (2 * x + 1).tolist()
    assert run(torch.empty(2, 0, device="pjrt")).shape == (2, 0)


def test_batches_are_what_they_were_when_they_were_copied() -> None:
    run = torch.compile(lambda x: x.sum(0), backend="pjrt", dynamic=True, options={"buckets": [8]})
    run(torch.ones(3, 2).to("pjrt"))
    x = torch.ones(5, 2)
    resident = x.to("pjrt")
    x.zero_()
    part = resident[1:4]
    assert run(part).tolist() == [3, 3]
    assert run(resident).tolist() == [5, 5]
    resident.mul_(2)
    assert run(part).tolist() == [6, 6]
    assert run(resident).tolist() == [10, 10]
    assert resident.tolist() == [[2, 2]] * 5


def test_sizes_that_are_not_padded_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As operators one by one, they would need several programs for each size."""
    monkeypatch.setattr(many_sizes, "MANY", 6)
    run = torch.compile(lambda x: x.cumsum(0), backend="pjrt", options={"buckets": []})
    crossed = Crossed()
    for size in range(2, 8):
        assert run(torch.ones(size, device="pjrt")).shape == (size,)
    with pytest.warns(BridgeWarning, match="compiles it for each further one"):
        run(torch.ones(8, device="pjrt"))
    assert crossed.since() == (0, 0)
    assert [graph.on_device for graph in compiled_graphs()] == [1] * 7


def test_sizes_that_come_often_get_a_program_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded_sizes, "OFTEN", 4)
    run = torch.compile(lambda x: (x @ x.mT).softmax(-1).cumsum(0), backend="pjrt", dynamic=True)
    run(torch.ones(2, 3, device="pjrt"))
    x = torch.rand(90, 64)
    expected = (x @ x.mT).softmax(-1).cumsum(0)
    counts = []
    for _ in range(6):
        assert_same(run(x.to("pjrt")).cpu(), expected, rtol=1e-4, atol=1e-5)
        counts.append(len(compiled_graphs()))
    assert counts == [2, 2, 2, 3, 3, 3]
    assert "a program of just these" in (compiled_graphs()[-1].trigger or "")


def test_fused_operators_read_what_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    run = torch.compile(lambda x: x * 2, backend="pjrt", dynamic=True, options={"buckets": [8]})
    run(torch.ones(3, device="pjrt"))
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", "fused")
    x = torch.arange(5.0).to("pjrt")
    assert (run(x) + x).tolist() == [0, 3, 6, 9, 12]
    x.add_(1)
    assert (run(x + 0) + x).tolist() == [3, 6, 9, 12, 15]


def test_what_is_written_into_has_memory_of_its_own() -> None:
    """A program may take over the memory of an argument that it writes into."""
    run = torch.compile(
        lambda x: x.add_(1).sum(0), backend="pjrt", dynamic=True, options={"buckets": [8]}
    )
    made = torch.compile(lambda x: x * 1, backend="pjrt", dynamic=True, options={"buckets": [8]})
    x = made(torch.zeros(5, 2, device="pjrt"))
    copied, version = x.clone(), x._version
    for step in range(1, 4):
        assert run(x).tolist() == [5 * step] * 2
        assert x._version > version
        version = x._version
        assert copied.tolist() == [[0, 0]] * 5
    assert x.tolist() == [[3, 3]] * 5
