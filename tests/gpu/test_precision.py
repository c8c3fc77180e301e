"""Products and convolutions on a GPU are as exact as torch's settings say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pjrt_bridge.runtime import Client

# Of torch's own modules, when `torch.compiler.reset` imports them.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"
)

SINGLE = 1e-6
"""Error of float32, in units of the result. TF32 has 13 bits less: errors are near 3e-4."""

WINOGRAD = 5e-6
"""The same of convolutions, which cuDNN may transform: that adds and subtracts before it
multiplies."""


@pytest.fixture
def torch(gpu: Client) -> Iterator[Any]:
    torch = pytest.importorskip("torch")
    before = torch.get_float32_matmul_precision()
    torch.compiler.reset()
    torch.manual_seed(0)
    yield torch
    torch.set_float32_matmul_precision(before)
    torch.compiler.reset()


def _functions(torch: Any) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], float]]:
    functional = torch.nn.functional
    x, y = torch.randn(256, 512), torch.randn(512, 128)
    image, weight = torch.randn(4, 32, 24, 24), torch.randn(48, 32, 3, 3)
    query = torch.randn(2, 4, 64, 32)

    def gradient(x: Any, y: Any) -> Any:
        x = x.detach().requires_grad_()
        (x @ y).square().sum().backward()
        return x.grad

    return {
        "product": (lambda x, y: x @ y, (x, y), SINGLE),
        "vector": (lambda x, y: x @ y, (x, y[:, 0].contiguous()), SINGLE),
        "batches": (torch.bmm, (x.view(4, 64, 512), y.expand(4, 512, 128)), SINGLE),
        "einsum": (lambda x, y: torch.einsum("ik,kj->ji", x, y), (x, y), SINGLE),
        "bias": (torch.addmm, (torch.randn(128), x, y), SINGLE),
        "gradient": (gradient, (x, y), SINGLE),
        "attention": (
            lambda q: functional.scaled_dot_product_attention(q, q, q),
            (query,),
            2 * SINGLE,
        ),
        "convolution": (functional.conv2d, (image, weight), WINOGRAD),
        "transposed": (functional.conv_transpose2d, (image, weight.transpose(0, 1)), WINOGRAD),
    }


NAMES = (
    *("product", "vector", "batches", "einsum", "bias", "gradient", "attention"),
    *("convolution", "transposed"),
)


def _error(found: Any, exact: Any) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", NAMES)
def test_float32_is_float32_by_default(torch: Any, name: str) -> None:
    function, arguments, bound = _functions(torch)[name]
    arguments = tuple(item.contiguous() for item in arguments)
    compiled = torch.compile(function, backend="pjrt", options={"plugin": "cuda"})
    exact = function(*(item.double() for item in arguments))
    assert _error(compiled(*arguments), exact) < bound


@pytest.mark.parametrize("setting", ["high", "medium"])
def test_a_setting_that_allows_less_is_taken_and_taken_back(torch: Any, setting: str) -> None:
    function, arguments, bound = _functions(torch)["product"]
    compiled = torch.compile(function, backend="pjrt", options={"plugin": "cuda"})
    exact = function(*(item.double() for item in arguments))
    torch.set_float32_matmul_precision(setting)
    # Tensor cores of this generation have TF32; the compiler takes it where that is faster.
    assert _error(compiled(*arguments), exact) < 2e-3
    torch.set_float32_matmul_precision("highest")
    assert _error(compiled(*arguments), exact) < bound


def test_double_precision_is_never_shortened(torch: Any) -> None:
    function, arguments, _ = _functions(torch)["product"]
    compiled = torch.compile(function, backend="pjrt", options={"plugin": "cuda"})
    torch.set_float32_matmul_precision("medium")
    doubles = tuple(item.double() for item in arguments)
    assert _error(compiled(*doubles), function(*doubles)) < 1e-14


def test_tensors_on_cuda_follow_the_settings_of_cuda(torch: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a build of torch with CUDA")
    functions = _functions(torch)
    before = torch.backends.cudnn.allow_tf32
    try:
        for name, allowed in (("product", True), ("convolution", False), ("convolution", True)):
            torch.backends.cudnn.allow_tf32 = allowed
            function, arguments, bound = functions[name]
            compiled = torch.compile(function, backend="pjrt", options={"plugin": "cuda"})
            found = compiled(*(item.cuda() for item in arguments)).cpu()
            exact = function(*(item.double() for item in arguments))
            shortened = name == "convolution" and allowed
            assert _error(found, exact) < (2e-3 if shortened else bound), (name, allowed)
    finally:
        torch.backends.cudnn.allow_tf32 = before
