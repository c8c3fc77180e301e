import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import interpolate

HALF = (torch.float16, torch.bfloat16)


def _image(dims: int, dtype: torch.dtype) -> torch.Tensor:
    """(2, 3, 4, 5, 3) or the first sizes of it; two elements are infinite."""
    shape = (2, 3, 4, 5, 3)[: 2 + dims]
    x = torch.arange(math.prod(shape), dtype=torch.float64).sin().reshape(shape).to(dtype)
    x.view(-1)[3], x.view(-1)[-1] = math.inf, -math.inf
    return x


def _compiled(dynamic: bool = False) -> Callable[..., Any]:
    return torch.compile(interpolate, backend="pjrt", dynamic=dynamic)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        *itertools.product(
            ("linear", "bilinear", "trilinear"), (torch.float32, torch.float64, *HALF)
        ),
        *itertools.product(("bicubic",), (torch.float32, torch.float64)),
    ],
    ids=str,
)
def test_infinities_stay_where_they_are_read(mode, dtype, align_corners):
    dims = {"linear": 1, "trilinear": 3}.get(mode, 2)
    x = _image(dims, dtype)
    for size in (tuple(x.shape[2:]), (7, 5, 4)[:dims], (2, 9, 3)[:dims]):
        options = {"size": size, "mode": mode, "align_corners": align_corners}
        found, expected = _compiled()(x, **options), interpolate(x, **options)
        torch.testing.assert_close(found, expected, equal_nan=True)
        if dtype in HALF:
            assert (found.nan_to_num() == expected.nan_to_num()).double().mean() > 0.9


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_factors_and_equal_sizes(dims):
    x = _image(dims, torch.float32)
    mode = ("linear", "bilinear", "trilinear")[dims - 1]
    for factor in (1.1, 1.7):
        options = {"scale_factor": factor, "mode": mode, "recompute_scale_factor": False}
        torch.testing.assert_close(
            _compiled()(x, **options), interpolate(x, **options), equal_nan=True
        )


def test_sizes_that_change():
    compiled = _compiled(dynamic=True)
    for count in (4, 6, 5):
        x = _image(2, torch.float32)[..., :count, :]
        options = {"size": (5, 8), "mode": "bilinear"}
        torch.testing.assert_close(
            compiled(x, **options), interpolate(x, **options), equal_nan=True
        )


def test_gradients():
    x = _image(2, torch.float64).nan_to_num(0, 0, 0).requires_grad_()
    options = {"size": (7, 5), "mode": "bilinear"}
    for run in (_compiled(), interpolate):
        (run(x, **options) * torch.arange(5)).sum().backward()
    twice = x.grad
    x.grad = None
    (interpolate(x, **options) * torch.arange(5)).sum().backward()
    torch.testing.assert_close(twice, 2 * x.grad)


def test_integers_are_interpolated_as_before():
    x = torch.arange(24, dtype=torch.uint8).reshape(1, 2, 3, 4)
    options = {"size": (5, 7), "mode": "bilinear"}
    torch.testing.assert_close(_compiled()(x, **options), interpolate(x, **options), atol=1, rtol=0)
