"""Operators that address all elements of a tensor are views of it, and are padded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same

pytestmark = pytest.mark.usefixtures("fresh")


def pooled_features(x: torch.Tensor) -> torch.Tensor:
    """As models pool the features of a sequence."""
    return F.adaptive_avg_pool1d((x * 2).transpose(1, 2), 1).flatten(1)


def pooled_image(x: torch.Tensor) -> torch.Tensor:
    image = x.unflatten(2, (2, 3)).contiguous(memory_format=torch.channels_last)
    return F.adaptive_avg_pool2d(image * 2, 1).flatten(1).exp()


def restrided(x: torch.Tensor) -> torch.Tensor:
    """The same elements in the same places."""
    y = x * 2
    return y.as_strided(y.shape, y.stride()) + 1


def other_shape(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y.as_strided((y.shape[0] * 4, 6), (6, 1)) + 1


FUNCTIONS = (pooled_features, pooled_image, restrided, other_shape)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_batches_of_all_sizes_share_programs(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    run = torch.compile(function, backend="pjrt")
    for batch in (3, 5, 4, 11, 7, 9, 6, 10, 13, 8, 12):
        x = torch.randn(batch, 4, 6)
        found, expected = run(x), function(x)
        assert_same(found, expected)
        assert found.stride() == expected.stride()
    assert len(compiled_graphs()) <= 4
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())


@pytest.mark.parametrize("function", FUNCTIONS[:3])
def test_training_with_batches_of_all_sizes(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    run = torch.compile(function, backend="pjrt")
    for batch in (3, 5, 4, 11, 7, 9, 6, 10, 13, 8, 12):
        x = torch.randn(batch, 4, 6, requires_grad=True)
        gradients = [torch.autograd.grad(f(x).square().sum(), x)[0] for f in (run, function)]
        assert_same(*gradients)
    assert len(compiled_graphs()) <= 8
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())


def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """None of these is all of a tensor in its order."""
    y = x * 2
    return (
        y.as_strided((4, 6), (1, 4)),
        y.as_strided((24,), (1,), 24),
        y[1:].as_strided((24,), (1,), 0),
        torch.as_strided_scatter(y, x[0], (4, 6), (6, 1), 24),
    )


def test_parts_keep_their_elements() -> None:
    x = torch.randn(3, 4, 6)
    for found, expected in zip(torch.compile(parts, backend="pjrt")(x), parts(x), strict=True):
        assert_same(found, expected)


def copies(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """All elements in their order, in memory of their own."""
    y, z = x * 2, x + 1
    size, stride = tuple(y.shape), y.stride()
    return (
        y,
        z,
        torch.as_strided_copy(y, size, stride),
        torch.as_strided_copy(y, (y.numel(),), (1,)),
        torch.as_strided_scatter(y, z, size, stride),
    )


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_copies_of_whole_tensors_share_no_memory(trains: bool, dynamic: bool) -> None:
    x = torch.randn(3, 4, 6, requires_grad=trains)
    found = torch.compile(copies, backend="pjrt", dynamic=dynamic)(x)
    assert_same(found, copies(x))
    assert len({item.untyped_storage().data_ptr() for item in found}) == len(found)
    assert not any(item._is_view() for item in found)
