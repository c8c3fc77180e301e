"""Sizes that differ from call to call: compiled once each, in a bounded cache, correct always.

Without padding, of which `passes/padding` has the tests.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch._dynamo import config as dynamo_config

from pjrt_bridge.mixed import variants
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.bind.sizes import changes, sizes_of
from tests.torch_interop.helpers import assert_same, compiled

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning"),
]


EXACT = {"buckets": []}


def test_strides_and_kinds_of_numbers_are_sizes_too() -> None:
    x = torch.ones(2, 3)
    calls = ([x, 1], [x.t().contiguous().t(), 1], [x, 1.0], [x, True])
    found = {sizes_of(arguments) for arguments in calls}
    assert len(found) == 4
    assert sizes_of([torch.zeros(2, 3), 1]) in found


def test_changes_in_words() -> None:
    def sizes(*tensors: torch.Tensor) -> tuple[Any, ...]:
        return sizes_of([*tensors, 5])

    x = torch.ones(2, 3)
    assert changes(sizes(x), sizes(x.t().contiguous().t())) == (
        "argument 0 became [2, 3] (strides [1, 2]), was [2, 3] (strides [3, 1])"
    )
    assert changes(sizes_of([1]), sizes_of([2])) == "argument 0 became 2, was 1"
    assert changes(sizes(*[x] * 5), sizes(*[x[:1]] * 5)).endswith(" and 2 more")


def data_dependent(x: torch.Tensor, k: int) -> Any:
    rows = torch.nonzero(x.exp().sum(1) > 3.5).squeeze(1)
    count = rows.shape[0]
    kept = x[rows] * 2 + k
    return kept.softmax(-1), torch.zeros(count + 1), count * 2, rows.sum()


def with_count(size: int, count: int) -> torch.Tensor:
    x = torch.full((size, 3), -1.0)
    x[:count] = 1
    return x[torch.randperm(size)] + torch.rand(size, 3) * 0.1


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_that_depend_on_data_in_one_graph(dynamic: bool) -> None:
    with dynamo_config.patch(capture_dynamic_output_shape_ops=True):
        run = torch.compile(
            data_dependent, backend="pjrt", fullgraph=True, dynamic=dynamic, options=EXACT
        )
        for size, count in ((8, 3), (8, 0), (8, 1), (8, 8), (6, 3), (6, 3), (8, 3)):
            x = with_count(size, count)
            found, expected = run(x, 5), data_dependent(x, 5)
            assert_same([found[0], found[1], found[3]], [expected[0], expected[1], expected[3]])
            assert found[2] == expected[2]
            assert isinstance(found[2], int)
    outer = [graph for graph in compiled_graphs() if graph.within is None]
    assert {"".join(s.placement[0] for s in graph.segments) for graph in outer} == {"dhd"}
    inner = [graph for graph in compiled_graphs() if graph.within is not None]
    assert all(graph.on_device == len(graph.segments) == 1 for graph in inner)
    # 3, 0, 1 and 8 rows; of the second size of x once more 3, unless the graphs share a part.
    assert 4 <= len(inner) <= 5


def test_many_data_dependent_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "EAGER", 3)
    run: Any
    with dynamo_config.patch(capture_dynamic_output_shape_ops=True):
        run = torch.compile(data_dependent, backend="pjrt", fullgraph=True, options=EXACT)
        for count in (*range(8), 7):
            x = with_count(8, count)
            assert_same(run(x, 5)[0], data_dependent(x, 5)[0])
    inner = [graph for graph in compiled_graphs() if graph.within is not None]
    # PyTorch ran the others: that is told in one more entry.
    assert [graph.on_device for graph in inner] == [1, 1, 1, 0, 1]


def test_where_the_host_is_forbidden_every_size_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(variants, "EAGER", 1)
    run = compiled(lambda x: x.sin() + x.shape[0], **EXACT)
    for size in range(3, 9):
        x = torch.randn(size)
        assert_same(run(x), x.sin() + size)
    assert [graph.on_device for graph in compiled_graphs()] == [1] * 6


def test_a_number_read_from_a_tensor_stays_on_the_device() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.exp() * x.sum().item(), (x.sin() + 1).cos()

    with dynamo_config.patch(capture_scalar_outputs=True):
        run = torch.compile(function, backend="pjrt", fullgraph=True)
        for _ in range(3):
            x = torch.randn(4)
            assert_same(run(x), function(x))
    (graph,) = compiled_graphs()
    assert [segment.placement for segment in graph.segments] == ["device"]


def test_a_count_read_from_a_tensor() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        count = n.item()
        return torch.arange(count) * 2 + x.sum().int(), x.exp() * count, count + 1

    with dynamo_config.patch(capture_scalar_outputs=True):
        run = torch.compile(function, backend="pjrt", fullgraph=True, options=EXACT)
        for count in (3, 5, 4, 3):
            x = torch.randn(4)
            found, expected = run(x, torch.tensor(count)), function(x, torch.tensor(count))
            assert_same(found[:2], expected[:2])
            assert found[2] == count + 1
    graph, *inner = compiled_graphs()
    assert "aten._local_scalar_dense.default" in graph.segments[0].operators
    assert len(inner) == 3


def test_a_check_of_a_size_that_holds_leaves_the_graph_whole() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] != 5)
        return x.exp().view(-1, 2)

    run = compiled(function, **EXACT)
    for size in (2, 4, 6):
        x = torch.randn(size)
        assert_same(run(x), x.exp().view(-1, 2))
    assert [(g.on_device, len(g.segments)) for g in compiled_graphs()] == [(1, 1)] * 3


def test_sizes_that_depend_on_data_and_go_together_in_calls_alone() -> None:
    def function(x: torch.Tensor, n: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        first, second = n.item(), m.item()
        torch._check(first >= 2 * second)
        return (torch.ones(first - 2 * second) * 2).exp() + x.exp().sum()

    with dynamo_config.patch(capture_scalar_outputs=True):
        run = torch.compile(function, backend="pjrt", fullgraph=True)
        for sizes in ((7, 2), (9, 3), (7, 2)):
            arguments = (torch.randn(4), *map(torch.tensor, sizes))
            assert_same(run(*arguments), function(*arguments))


def test_ragged_sizes_of_nested_tensors() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w) * 2

    run, w = compiled(function), torch.randn(3, 4)
    for lengths in ((3, 2), (3, 2), (4, 1), (5, 5)):
        rows = [torch.randn(length, 3) for length in lengths]
        x = torch.nested.nested_tensor(rows, layout=torch.jagged)
        found, expected = run(x, w), function(x, w)
        assert_same(found.values(), expected.values())
        assert found.shape[:1] == expected.shape[:1]
        assert [len(row) for row in found.unbind()] == list(lengths)
    # One for torch's first capture, two for sums of the lengths once they differ.
    assert [graph.on_device for graph in compiled_graphs()] == [1] * 3


def test_strides_that_are_products_of_three_sizes() -> None:
    """AOTAutograd gives overlapping arguments one base, which it views with such strides."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = y.sin()
        x[:2].zero_()
        return z

    run = torch.compile(function, backend="pjrt", dynamic=True)
    for size in (6, 4, 5):
        base, kept = (torch.arange(2.0 * size * 6).reshape(2, size, 6) for _ in range(2))
        found = run(base[..., ::2], base[:, :, ::2][:-1])
        assert_same(found, function(kept[..., ::2], kept[:, :, ::2][:-1]))
        assert_same(base, kept)


def test_a_number_that_changes_under_compiled_autograd() -> None:
    """A mode of torch's is active then, which takes numbers that are tensors for numbers."""
    x = torch.ones(3, requires_grad=True)

    def double(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad *= 2

    x.register_post_accumulate_grad_hook(double)
    compiler = partial(torch.compile, backend="pjrt", dynamic=True)
    with compiled_autograd._enable(compiler):
        for number in range(4):
            x.grad = None
            (x * number).sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [2.0 * number] * 3
