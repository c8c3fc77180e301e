"""Sampling of images of padded sizes at points."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch_interop.passes.padding.rows import (
    SIZE,
    assert_padding_changes_nothing,
    gradients,
    refusals,
    symbolic,
)

N = SIZE
torch.manual_seed(0)
POINTS = torch.rand(2, 3, 4, 2) * 2.6 - 1.3

GIVEN: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
    "images": (torch.randn(2, 3, N, N), POINTS),
    "volumes": (torch.randn(2, 3, N, 4, N), torch.rand(2, 3, 4, 2, 3) * 2.6 - 1.3),
    "points": (torch.randn(N, 3, 7, 6), torch.rand(N, 3, N, 2) * 2.6 - 1.3),
    "a batch of images and points": (torch.randn(N, 3, N, 6), torch.rand(N, 3, N, 2) * 2.6 - 1.3),
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("name", GIVEN)
def test_points_lie_where_they_do_without_padding(
    name: str, mode: str, padding: str, aligned: bool, backward: bool
) -> None:
    if name == "volumes" and mode == "bicubic":
        mode = "bilinear"

    def function(image: torch.Tensor, points: torch.Tensor) -> Any:
        return F.grid_sample(image, points, mode, padding, aligned)

    assert_padding_changes_nothing(gradients(function) if backward else function, *GIVEN[name])


def test_images_in_half_precision_are_not_padded() -> None:
    args = torch.randn(2, 3, N, N).half(), POINTS.half()
    (found,) = refusals(symbolic(F.grid_sample, *args), args)
    assert "it rounds positions in the dimension to half precision" in found
