"""Sampling of images of padded sizes at points."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch_interop.passes.padding.rows import (
    SIZE,
    assert_padding_changes_nothing,
    refusals,
    symbolic,
    with_gradients,
)

N = SIZE
torch.manual_seed(0)
POINTS = torch.rand(2, 3, 4, 2) * 2.6 - 1.3

IMAGES = torch.randn(2, 3, N, N)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_points_lie_in_images_where_they_do_without_padding(
    mode: str, padding: str, aligned: bool
) -> None:
    def function(image: torch.Tensor, points: torch.Tensor) -> Any:
        return F.grid_sample(image, points, mode, padding, aligned)

    assert_padding_changes_nothing(with_gradients(function), IMAGES, POINTS)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_points_lie_in_volumes_where_they_do_without_padding(padding: str) -> None:
    def function(volume: torch.Tensor, points: torch.Tensor) -> Any:
        return F.grid_sample(volume, points, padding_mode=padding, align_corners=False)

    points = torch.rand(2, 3, 4, 2, 3) * 2.6 - 1.3
    assert_padding_changes_nothing(with_gradients(function), torch.randn(2, 3, N, 4, N), points)


@pytest.mark.parametrize("shape", [(N, 3, 7, 6), (N, 3, N, 6)], ids=str)
def test_any_number_of_points_and_images(shape: tuple[int, ...]) -> None:
    def function(image: torch.Tensor, points: torch.Tensor) -> Any:
        return F.grid_sample(image, points, align_corners=False)

    points = torch.rand(N, 3, N, 2) * 2.6 - 1.3
    assert_padding_changes_nothing(with_gradients(function), torch.randn(shape), points)


def test_no_gradient_of_points() -> None:
    def function(image: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            own = image.detach().requires_grad_()
            made = F.grid_sample(own, points, align_corners=False)
            return torch.autograd.grad(made.sin().sum(), own)[0]

    image, points = torch.randn(2, 3, 6, SIZE), torch.rand(2, SIZE, 4, 2) * 2 - 1
    assert_padding_changes_nothing(function, image, points)


def test_images_in_half_precision_are_not_padded() -> None:
    args = torch.randn(2, 3, N, N).half(), POINTS.half()
    graph = symbolic(lambda x, points: F.grid_sample(x, points, align_corners=False), *args)
    (found,) = refusals(graph, args)
    assert "it rounds positions in the dimension to half precision" in found
