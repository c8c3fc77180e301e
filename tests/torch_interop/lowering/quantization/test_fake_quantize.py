import math

import pytest
import torch

from tests.torch_interop.helpers import assert_same, compiled
from tests.torch_interop.lowering.harness import check

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def numbers(dtype=torch.float32):
    """With ties, numbers out of range, and what is no number."""
    x = torch.randn(3, 40) * 4
    x[0, :6] = torch.tensor([0.05, 0.15, -0.25, 100.0, -100.0, 1e30])
    x[1, :3] = torch.tensor([math.inf, -math.inf, math.nan])
    return x.to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_scale(dtype):
    for scale, zero, low, high in [(0.1, 0, -128, 127), (0.03, 7, 0, 255), (0.5, -3, -8, 7)]:
        name = "aten.fake_quantize_per_tensor_affine_cachemask.default"
        check(name, numbers(dtype), scale, zero, low, high)


@pytest.mark.parametrize("enabled", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_scale_that_is_a_tensor(dtype, enabled):
    check(
        "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default",
        numbers(dtype),
        torch.tensor(0.07),
        torch.tensor(3, dtype=torch.int32),
        torch.tensor([enabled]),
        -128,
        127,
    )


@pytest.mark.parametrize("zero", [torch.int32, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_scale_for_each_channel(dtype, axis, zero):
    x = numbers(dtype) if axis == 0 else numbers(dtype).t().contiguous()
    check(
        "aten.fake_quantize_per_channel_affine_cachemask.default",
        x,
        torch.tensor([0.1, 0.03, 0.5]),
        torch.tensor([0.0, 3.25, -2.5]).to(zero),
        axis,
        -128,
        127,
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("zero", [-200.0, 1.4, 2.5, 300.0])
def test_learned_scales(dtype, zero):
    x, scale = numbers(dtype), torch.tensor([0.1, 0.03, 0.5])
    name = "aten._fake_quantize_learnable_{}_affine.default"
    one = torch.tensor([zero])
    check(name.format("per_tensor"), x, scale[:1], one, -128, 127)
    check(name.format("per_channel"), x, scale, torch.tensor([zero, 0.5, -1.5]), 0, -128, 127)


@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_learned_scales(axis):
    x = torch.randn(3, 40) * 8
    x = x if axis == 0 else x.t().contiguous()
    grad, scale = torch.randn_like(x), torch.tensor([0.1, 0.03, 0.5])
    name = "aten._fake_quantize_learnable_{}_affine_backward.default"
    check(name.format("per_tensor"), grad, x, scale[:1], torch.tensor([1.4]), -128, 127, 0.5)
    zero = torch.tensor([-200.0, 0.5, 3.0])
    check(name.format("per_channel"), grad, x, scale, zero, axis, -128, 127, 0.5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_training_runs_on_the_device(dtype):
    scale, zero = torch.tensor([0.1, 0.03, 0.5]), torch.zeros(3, dtype=torch.int32)

    def function(x):
        x = torch.fake_quantize_per_tensor_affine(x, 0.05, 2, -128, 127)
        return torch.fake_quantize_per_channel_affine(x * 3, scale, zero, 0, -8, 7)

    x = (torch.randn(3, 10) * 4).to(dtype).requires_grad_()
    results = []
    for run in (compiled(function), function):
        y = run(x)
        results.append((y, *torch.autograd.grad(y.float().square().sum(), x)))
    tight = dtype in (torch.float32, torch.float64)
    tolerance = 1e-5 if tight else 1e-2
    assert_same(results[0], results[1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("channels", [False, True])
def test_training_with_learned_scales_runs_on_the_device(channels):
    def function(x, scale, zero):
        if channels:
            return torch._fake_quantize_learnable_per_channel_affine(x, scale, zero, 0, -8, 7, 0.5)
        return torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, -8, 7, 0.5)

    count = 3 if channels else 1
    x = torch.randn(3, 10, requires_grad=True)
    scale = torch.rand(count).add(0.1).requires_grad_()
    zero = torch.zeros(count, requires_grad=True)
    results = []
    for run in (compiled(function), function):
        y = run(x, scale, zero)
        results.append((y, *torch.autograd.grad(y.square().sum(), (x, scale, zero))))
    assert_same(results[0], results[1])
