import math

import pytest
import torch

from tests.torch_interop.lowering.harness import as_list, check, compare, lower, overload

torch.manual_seed(0)
X = torch.randn(4, 6, 5) * 3 + 1
G = torch.randn(4, 6, 5)
W, B = torch.rand(6) + 0.5, torch.randn(6)
RM, RV = torch.randn(6), torch.rand(6) + 0.5
LOGITS = torch.tensor([[1.0, -2.0, 3.0], [-math.inf, 0.0, 1.0], [1e4, 1e4, -1e4]])
MASKS = [(True, True, True), (True, False, False), (False, True, True)]

HALF = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
@pytest.mark.parametrize("dim", [0, -1])
def test_softmax(name, dim, dtype):
    values = LOGITS.to(dtype)
    check(f"aten.{name}.default", values, dim, False)
    check(f"aten.{name}.default", torch.full((2, 2), -math.inf, dtype=dtype), dim, False)
    (output,) = as_list(overload(f"aten.{name}.default")(values, dim, False))
    grad = torch.randn(3, 3).to(dtype)
    check(f"aten.{name}_backward_data.default", grad, output, dim, dtype)


def test_softmax_of_a_number_and_of_nothing():
    check("aten._softmax.default", torch.tensor(2.0), 0, False)
    check("aten._softmax.default", torch.empty(0, 3), 1, False)
    check("aten._log_softmax.default", torch.empty(2, 0), 1, False)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [[5], [6, 5]])
def test_layer_norm(dtype, affine, shape):
    weight = (torch.rand(shape) + 0.5).to(dtype) if affine else None
    bias = torch.randn(shape).to(dtype) if affine else None
    check("aten.native_layer_norm.default", X.to(dtype), shape, weight, bias, 1e-5)


def test_layer_norm_of_half_precision_with_float_parameters():
    weight, bias = torch.rand(5), torch.randn(5)
    check("aten.native_layer_norm.default", X.bfloat16(), [5], weight, bias, 1e-5)


@pytest.mark.parametrize("mask", MASKS)
def test_layer_norm_backward(mask):
    weight, bias = torch.rand(6, 5), torch.randn(6, 5)
    _, mean, rstd = torch.ops.aten.native_layer_norm(X, [6, 5], weight, bias, 1e-5)
    name = "aten.native_layer_norm_backward.default"
    check(name, G, X, [6, 5], mean, rstd, weight, bias, list(mask))
    mask = (mask[0], False, False)
    check(name, G, X, [6, 5], mean, rstd, None, None, list(mask))


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(dtype, affine):
    weight, bias = (W.to(dtype), B.to(dtype)) if affine else (None, None)
    check("aten.native_group_norm.default", X.to(dtype), weight, bias, 4, 6, 5, 3, 1e-5)


@pytest.mark.parametrize("mask", MASKS)
def test_group_norm_backward(mask):
    _, mean, rstd = torch.ops.aten.native_group_norm(X, W, B, 4, 6, 5, 2, 1e-5)
    args = (G, X, mean, rstd, W, 4, 6, 5, 2, list(mask))
    check("aten.native_group_norm_backward.default", *args)


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5), (2, 6, 3, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(shape, affine):
    x = torch.randn(shape)
    weight, bias = (W, B) if affine else (None, None)
    functional = "aten._native_batch_norm_legit_functional.default"
    for training in (True, False):
        check(functional, x, weight, bias, RM, RV, training, 0.1, 1e-5)
    inference = "aten._native_batch_norm_legit_no_training.default"
    check(inference, x, weight, bias, RM, RV, 0.1, 1e-5)
    no_stats = "aten._native_batch_norm_legit.no_stats"
    check(no_stats, x, weight, bias, True, 0.1, 1e-5)


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_keeps_the_promised_type_of_half_precision_statistics(train):
    # Torch promises float32 for the new statistics, its kernel gives them as the old ones are.
    name = "aten._native_batch_norm_legit_functional.default"
    args = (*(t.bfloat16() for t in (X, W, B, RM, RV)), train, 0.1, 1e-5)
    for ours, theirs in zip(lower(name, *args)[3:], overload(name)(*args)[3:], strict=True):
        assert ours.dtype is torch.float32
        assert theirs.dtype is torch.bfloat16
        torch.testing.assert_close(ours.to(theirs.dtype), theirs, rtol=0.01, atol=0.01)


def test_batch_norm_of_half_precision_keeps_float_statistics():
    functional = "aten._native_batch_norm_legit_functional.default"
    check(functional, X.bfloat16(), W, B, RM, RV, True, 0.1, 1e-5)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_backward(mask, train):
    _, mean, invstd = torch.ops.aten.native_batch_norm(X, W, B, RM, RV, train, 0.1, 1e-5)
    args = (G, X, W, RM, RV, mean, invstd, train, 1e-5, list(mask))
    check("aten.native_batch_norm_backward.default", *args)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim):
    v = torch.randn(3, 4, 5)
    g = torch.rand([n if d == dim else 1 for d, n in enumerate(v.shape)])
    name = "aten._weight_norm_interface"
    check(f"{name}.default", v, g, dim)
    w, norms = overload(f"{name}.default")(v, g, dim)
    grad = torch.randn_like(w)
    expected = overload(f"{name}_backward.default")(grad, v, g, norms, dim)
    compare(lower(f"{name}_backward.default", grad, v, g, norms, dim), expected)


def test_batch_norm_with_update_and_its_gradient():
    x, weight, bias = torch.randn(4, 3, 5), torch.rand(3), torch.randn(3)
    running = (torch.rand(3), torch.rand(3))
    name = "aten._batch_norm_with_update_functional.default"
    check(name, x, weight, bias, *running, 0.1, 1e-5)
    _, mean, rstd, reserve, *_ = overload(name)(x, weight, bias, *running, 0.1, 1e-5)
    saved = (mean, rstd, True, 1e-5, [True, True, True], reserve)
    check("aten.batch_norm_backward.default", torch.randn_like(x), x, weight, *running, *saved)
