"""What masks select of padded tensors, forward and backward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.passes.padding.rows import (
    SIZE,
    assert_padding_changes_nothing,
    with_gradients,
)

N = SIZE
torch.manual_seed(0)
MASK = torch.tensor([[True, False, True, True, False], [False, True, True, False, True]])


def test_elements_in_the_order_of_a_tensor() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
        rows = x.masked_scatter(mask[..., None], source)
        return (
            rows,
            x.masked_scatter(mask[0, :, None], source.t()),
            rows.masked_scatter(mask[1:], x),
        )

    def last(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
        return x.transpose(1, 2).masked_scatter(mask[:, None], source)

    for source in ((7, 3), (N, 9), (3, 2, N), (2, N, 3)):
        args = torch.randn(2, N, 3), MASK, torch.randn(source)
        assert_padding_changes_nothing(with_gradients(last), *args)
    args = torch.randn(2, N, N), MASK, torch.randn(9, 9)
    assert_padding_changes_nothing(with_gradients(function), *args)


def test_positions_of_so_many_elements() -> None:
    def function(mask: torch.Tensor) -> Any:
        return (
            torch.nonzero_static(mask, size=4),
            torch.nonzero_static(mask[0], size=mask.shape[1], fill_value=7),
        )

    assert_padding_changes_nothing(function, MASK)


@pytest.mark.usefixtures("fresh")
def test_images_among_words() -> None:
    def function(words: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(words.shape[1]) % 3 == 1
        return words.masked_scatter(mask[:, None].expand(-1, words.shape[2]), images).tanh()

    run = torch.compile(function, backend="pjrt")
    for length in (6, 9, 40, 37, 31, 12, 25):
        gradients = []
        for one in (run, function):
            torch.manual_seed(length)
            given = [torch.randn(2, length, 4), torch.randn(2 * ((length + 1) // 3), 4)]
            given = [item.requires_grad_() for item in given]
            made = one(*given)
            made.square().sum().backward()
            gradients.append([made.detach(), *(item.grad for item in given)])
        assert_same(*gradients, rtol=1e-5, atol=1e-5)
    assert len(compiled_graphs()) <= 12
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())


def test_positions_of_all_that_are_not_zero() -> None:
    def function(mask: torch.Tensor, x: torch.Tensor) -> Any:
        return mask.nonzero(), mask.t().nonzero(), (x > 0).nonzero(), (x > 0).flatten().nonzero()

    for seed in range(4):
        torch.manual_seed(seed)
        assert_padding_changes_nothing(function, MASK, torch.randn(2, N, 3, N))


def test_what_a_mask_selects() -> None:
    def function(mask: torch.Tensor, x: torch.Tensor) -> Any:
        first = mask[0]
        return (
            *(x[mask], x[:, first], x[:, :, :, first], x[:, :, mask[:, :3].any(0)]),
            *(x[x > 0], x.flatten(0, 1)[mask.flatten()], x.transpose(1, 3)[mask]),
        )

    for seed in range(4):
        torch.manual_seed(seed)
        mask = torch.rand(2, N) > seed / 4
        assert_padding_changes_nothing(function, mask, torch.randn(2, N, 3, N))


def test_distinct_integers() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor) -> Any:
        return (
            *(x.unique(), x.flatten().unique(return_inverse=True)),
            *(x.t().unique(return_counts=True), mask.unique(return_counts=True)),
            x[0].unique(return_inverse=True, return_counts=True),
        )

    for most in (1, 3, 9):
        x = torch.randint(-2, most, (3, N))
        assert_padding_changes_nothing(function, x, x > 0)


def test_distinct_numbers() -> None:
    def function(x: torch.Tensor) -> Any:
        return (
            *(x.unique(), x.flatten().unique(return_inverse=True, return_counts=True)),
            *(x.t().unique(return_inverse=True), (x > 0).unique(sorted=False)),
            *x.t().unique_consecutive(return_inverse=True, return_counts=True),
            x.sign().flatten().unique_consecutive(),
        )

    x = (torch.randn(3, N) * 2).round()
    for start in (0.0, torch.nan, -torch.inf):
        x[0, 0] = start
        assert_padding_changes_nothing(function, x)


def test_rows_of_a_table_whose_size_depends_on_data() -> None:
    def function(x: torch.Tensor, table: torch.Tensor) -> Any:
        found, which = x.unique(return_inverse=True)
        rows = table[found]
        return rows[which], torch.nn.functional.embedding(which, rows), rows.index_select(0, which)

    assert_padding_changes_nothing(function, torch.randint(0, 6, (N,)), torch.randn(6, 2))


def by_positions(x: torch.Tensor, table: torch.Tensor) -> Any:
    places = (x[:, 0] > 0).nonzero().squeeze(1)
    return x.index_add(0, places, x[places].cos()), table[places % 4].sum(0)


def by_masks(x: torch.Tensor, table: torch.Tensor) -> Any:
    order = x[:, 0].argsort(descending=True)
    near = (x[order, None] - x[order]).abs().sum(-1) < 1
    kept = order[~near.triu(1).any(0)]
    return x[kept].exp(), (x[kept] @ table.T).softmax(-1)


def by_distinct(x: torch.Tensor, table: torch.Tensor) -> Any:
    found, which = (x[:, 0] * 3).round().long().unique(return_inverse=True)
    return table[found % 4].tanh()[which], found


def by_distinct_numbers(x: torch.Tensor, table: torch.Tensor) -> Any:
    found, which, counts = (x[:, 0] * 3).round().unique(return_inverse=True, return_counts=True)
    return found.tanh()[which] * counts[which], (x[:, 0] > 0).unique_consecutive()


def by_masks_and_positions(x: torch.Tensor, table: torch.Tensor) -> Any:
    mask, column = x[:, 0] > 0, x.argmax(1)
    cube = x[:, None] * table
    chosen = column[mask]
    y = x.index_put((mask, chosen), x.sum() * 0 + 5)
    return x[mask, chosen] * 2, cube[mask, :, chosen].sin(), cube[mask, chosen].sum(0), y.exp()


def by_masks_in_order(x: torch.Tensor, table: torch.Tensor) -> Any:
    mask = x[:, 0] > 0
    return x.masked_scatter(mask[:, None], x[mask] * 2).tanh(), table


FUNCTIONS = (
    *(by_positions, by_masks, by_distinct, by_distinct_numbers),
    *(by_masks_and_positions, by_masks_in_order),
)


@pytest.mark.usefixtures("fresh")
@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_graph_with_sizes_that_data_decide(function: Callable[..., Any]) -> None:
    table = torch.randn(4, 3)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = torch.compile(function, backend="pjrt", fullgraph=True)
        for length in (6, 9, 40, 37, 31, 12, 25, 58, 19, 44, 0, 1):
            x = torch.randn(length, 3)
            assert_same(run(x, table), function(x, table), rtol=1e-5, atol=1e-5)
    device = sum(graph.on_device for graph in compiled_graphs())
    assert device <= 14


@pytest.mark.usefixtures("fresh")
@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_positions_out_of_range_where_sizes_depend_on_data() -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[x > 0][index] * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = torch.compile(function, backend="pjrt", fullgraph=True)
        for length in (6, 9, 40, 37, 31):
            x, index = torch.randn(length).abs() + 1, torch.randint(-length, length, (length,))
            assert_same(run(x, index), function(x, index))
            index[length // 2] = length
            with pytest.raises(IndexError):
                run(x, index)
            with pytest.raises(IndexError):
                run(-x, index * 0)


@pytest.mark.usefixtures("fresh")
@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_training_with_what_a_mask_selects() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        mask = (x[..., 0] > 0) & (x[..., 1] < 0.5)
        return x[mask].square().sum() + x[:, x[0, :, 0] > 0].sin().sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = torch.compile(function, backend="pjrt", fullgraph=True)
        for length in (6, 9, 40, 37, 31, 12, 25, 58, 19, 44):
            gradients = []
            for one in (run, function):
                torch.manual_seed(length)
                x = torch.randn(2, length, 3, requires_grad=True)
                made = one(x)
                made.backward()
                gradients.append([made.detach(), x.grad])
            assert_same(*gradients, rtol=1e-4, atol=1e-5)
    reasons = [str(reason) for graph in compiled_graphs() for reason in graph.fallback_reasons]
    assert not any("not padded" in reason for reason in reasons)
    assert len(compiled_graphs()) <= 8
