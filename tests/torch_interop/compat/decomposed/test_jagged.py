"""Nested tensors of layout jagged that are padded, and their gradients, run on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same

pytestmark = pytest.mark.usefixtures("fresh")


def nested(x: Tensor, ends: Tensor) -> Any:
    return torch.nested.nested_tensor_from_jagged(x * 2, ends)


def padded(x: Tensor, ends: Tensor) -> Tensor:
    made: Tensor = nested(x, ends).to_padded_tensor(-1.0)
    return made


def cut_off(x: Tensor, ends: Tensor) -> Tensor:
    """No text may have more rows than these."""
    return torch.ops.aten._jagged_to_padded_dense_forward(x * 2, [ends], [2], 5.0)


def back_again(x: Tensor, ends: Tensor) -> Tensor:
    rows = torch.ops.aten._jagged_to_padded_dense_forward(x, [ends], [x.shape[0]])
    return torch.ops.aten._padded_dense_to_jagged_forward(rows * 2, [ends], x.shape[0])


def sums(x: Tensor, ends: Tensor) -> Tensor:
    made: Tensor = nested(x, ends).sum(1)
    return made


def texts(rows: int) -> tuple[Tensor, Tensor]:
    """Of which one is empty."""
    return torch.randn(rows, 3), torch.tensor([0, 2, 2, rows // 2, rows])


@pytest.mark.parametrize("function", [padded, cut_off, back_again, sums])
def test_few_programs_serve_all_numbers_of_rows(function: Callable[..., Tensor]) -> None:
    run = torch.compile(function, backend="pjrt")
    for rows in (7, 9, 12, 10, 23, 8, 17, 15, 11):
        x, ends = texts(rows)
        assert_same(run(x, ends), function(x, ends))
    assert len(compiled_graphs()) <= 4
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())


def test_gradients() -> None:
    run = torch.compile(padded, backend="pjrt")
    for rows in (7, 9, 12, 10, 23, 8, 17, 15, 11):
        x, ends = texts(rows)
        x.requires_grad_()
        loss = [one(x, ends).square().sum() for one in (run, padded)]
        assert_same(*(torch.autograd.grad(one, x)[0] for one in loss))
    assert len(compiled_graphs()) <= 8
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).shape,
        lambda x: (x * 2).size(1),
        lambda x: (x.sin(), x.cos().shape),
        lambda x: (x.values() * 2, (x + 1).shape[1], x * 2),
    ],
)
def test_sizes_of_ragged_dimensions_as_results(
    function: Callable[[Tensor], Any], grad: bool, dynamic: bool | None
) -> None:
    run = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for rows in (7, 9, 7, 9, 12):
        x, ends = texts(rows)
        given = nested(x.requires_grad_(grad), ends).detach().requires_grad_(grad)
        leaves, expected = (
            torch.utils._pytree.tree_leaves(each(given)) for each in (run, function)
        )
        for found, wanted in zip(leaves, expected, strict=True):
            if isinstance(wanted, Tensor):
                assert found.shape == wanted.shape
                assert found.requires_grad == wanted.requires_grad
                if wanted.is_nested:
                    found, wanted = found.values(), wanted.values()
                assert_same(found, wanted)
            else:
                assert found == wanted
