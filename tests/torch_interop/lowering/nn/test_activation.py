import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check

X = torch.tensor([-math.inf, -30.0, -3.0, -1.0, -0.1, 0.0, 0.3, 1.0, 2.0, 25.0, math.nan])
FINITE = X[1:-1]
GRAD = torch.linspace(-2, 2, len(FINITE))
HALF = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("relu", (), {}),
        ("hardtanh", (), {}),
        ("hardtanh", (0.0, 6.0), {}),
        ("leaky_relu", (0.2,), {}),
        ("elu", (), {}),
        ("elu", (1.5, 0.5, 2.0), {}),
        ("silu", (), {}),
        ("softplus", (), {}),
        ("softplus", (2, 5), {}),
        ("gelu", (), {}),
        ("gelu", (), {"approximate": "tanh"}),
    ],
)
def test_forward(name, args, kwargs, dtype):
    values = X[1:] if name == "silu" else X
    check(f"aten.{name}.default", values.to(dtype), *args, **kwargs)
    check(f"aten.{name}.default", torch.tensor(0.75, dtype=dtype), *args, **kwargs)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("hardtanh_backward", (-1.0, 1.0), {}),
        ("threshold_backward", (0,), {}),
        ("gelu_backward", (), {}),
        ("gelu_backward", (), {"approximate": "tanh"}),
    ],
)
def test_backward(name, args, kwargs, dtype):
    check(f"aten.{name}.default", GRAD.to(dtype), FINITE.to(dtype), *args, **kwargs)


@pytest.mark.parametrize("name", ["sigmoid_backward", "tanh_backward"])
def test_backward_from_output(name):
    check(f"aten.{name}.default", GRAD, torch.tanh(FINITE))


def test_integer_relu():
    check("aten.relu.default", torch.tensor([-2, 0, 3]))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradient_of_random_leaks(training, dtype):
    x, noise = torch.randn(2, 7).to(dtype)
    arguments = (torch.ones_like(x), x, noise, 0.1, 0.3, training, False)
    check("aten.rrelu_with_noise_backward.default", *arguments)


@pytest.mark.parametrize("threshold", [0, 0.5])
def test_the_gradient_is_0_at_the_threshold(threshold):
    x = torch.tensor([-1.0, 0.0, -0.0, 0.5, 1.0, math.nan])
    grad = torch.full_like(x, 2.0)
    check("aten.threshold_backward.default", grad, x, threshold, exact=True)


@pytest.mark.parametrize("factors", [(math.inf,), (math.nan,), (1.0, 1.0, math.inf)], ids=str)
def test_elu_is_linear_at_zero(factors):
    check("aten.elu.default", torch.tensor([0.0, -0.0, 1.0, -1.0]), *factors)
