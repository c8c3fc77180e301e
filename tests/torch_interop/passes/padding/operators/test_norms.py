"""Norms over padded dimensions, and beside them, forward and backward."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch_interop.passes.padding.rows import (
    SIZE,
    assert_padding_changes_nothing,
    padded,
    symbolic,
    with_gradients,
)

N = SIZE
torch.manual_seed(0)


@pytest.mark.parametrize("shape", [(3, N), (2, 3, N), (N,), (3, N, 4), (N, 3, N)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_layer_norm_over_the_dimension(shape: tuple[int, ...], weighted: bool) -> None:
    count = 2 if shape == (3, N, 4) else 1

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-count:], *weights)

    weights = [torch.randn(shape[-count:]) for _ in range(2 * weighted)]
    assert_padding_changes_nothing(with_gradients(function), torch.randn(shape), *weights)


def test_layer_norm_with_one_weight_for_all_positions() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x * w, (x.shape[0], 3)) + w.sum()

    assert_padding_changes_nothing(
        with_gradients(function), torch.randn(2, N, 3)[0], torch.randn(1)
    )


def test_layer_norm_gives_the_strides_that_torch_promises() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.transpose(0, 1), (x.shape[0],))

    assert_padding_changes_nothing(with_gradients(function), torch.randn(N, 4))


def test_layer_norm_in_half_precision() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.bfloat16(), x.shape[-1:])

    assert_padding_changes_nothing(function, torch.randn(4, N) * 8)


def test_root_mean_squares_over_the_dimension() -> None:
    def function(x: torch.Tensor) -> Any:
        return F.rms_norm(x, x.shape[1:], eps=1e-3)

    assert_padding_changes_nothing(with_gradients(function), torch.randn(3, N, 4))


@pytest.mark.parametrize("shape", [(N, 3), (N, 3, 4), (2, 3, N), (N, 3, N, N)], ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm(shape: tuple[int, ...], training: bool) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        fixed = (w[2].detach(), w[3].detach().exp())
        return F.batch_norm(x, *((None, None) if training else fixed), w[0], w[1], training)

    assert_padding_changes_nothing(with_gradients(function), torch.randn(shape), torch.randn(4, 3))


def test_statistics_of_a_batch_in_half_precision_are_computed_in_float32() -> None:
    def function(x: torch.Tensor, *vectors: torch.Tensor) -> Any:
        normalize = torch.ops.aten._native_batch_norm_legit_functional.default
        made = normalize(x.bfloat16(), *vectors, True, 0.1, 1e-5)
        return made[0].float(), made[3], made[4]

    args = [torch.randn(N, 3, 4), *torch.rand(4, 3).unbind()]
    y, *statistics = padded(symbolic(function, *args), args)
    expected, *exact = function(*args)
    torch.testing.assert_close(y, expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(statistics, exact, rtol=1e-5, atol=1e-6)
