"""Single operators, and chains that a compiler makes one loop of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.case import Array, Case, functions
from benchmarks.cases.networks import SHORT

_ALL = ("eager", "inductor", "pjrt", "jax")
_Made = Callable[[Any], Callable[..., Any]]


def _kernel(name: str, arrays: tuple[Array, ...], torch: _Made, jax: _Made) -> Case:
    return Case(name, _ALL, *functions(arrays, torch, jax))


def _matmul(size: int, dtype: str) -> Case:
    square = Array((size, size), dtype)
    return _kernel(
        f"matmul of {size}, {SHORT[dtype]}",
        (square, square),
        lambda torch: lambda a, b: a @ b,
        lambda jax: lambda a, b: a @ b,
    )


def _linear(dtype: str) -> Case:
    return _kernel(
        f"linear layer of 1024, batch 256, {SHORT[dtype]}",
        (Array((256, 1024), dtype), Array((1024, 1024), dtype)),
        lambda torch: torch.nn.functional.linear,
        lambda jax: lambda x, weight: x @ weight.T,
    )


def _convolution(
    name: str,
    image: tuple[int, ...],
    weight: tuple[int, ...],
    *,
    stride: int = 1,
    dtype: str = "float32",
) -> Case:
    padding = weight[-1] // 2
    groups = image[1] // weight[1]

    def torch(torch: Any) -> Callable[..., Any]:
        return lambda x, kernel: torch.nn.functional.conv2d(
            x, kernel, stride=stride, padding=padding, groups=groups
        )

    def jax(jax: Any) -> Callable[..., Any]:
        return lambda x, kernel: jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), [(padding, padding)] * 2, feature_group_count=groups
        )

    return _kernel(
        f"{name}, {SHORT[dtype]}", (Array(image, dtype), Array(weight, dtype)), torch, jax
    )


def _softmax(rows: int) -> Case:
    return _kernel(
        f"softmax of {rows} x 1000",
        (Array((rows, 1000)),),
        lambda torch: lambda x: torch.softmax(x, -1),
        lambda jax: lambda x: jax.nn.softmax(x, -1),
    )


def _layer_norm(rows: int, dtype: str) -> Case:
    def jax(jax: Any) -> Callable[..., Any]:
        def norm(x: Any) -> Any:
            centered = x - x.mean(-1, keepdims=True)
            return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5)

        return norm

    return _kernel(
        f"layernorm of {rows} x 1000, {SHORT[dtype]}",
        (Array((rows, 1000), dtype),),
        lambda torch: lambda x: torch.nn.functional.layer_norm(x, (1000,)),
        jax,
    )


def _rms_norm(rows: int, dtype: str) -> Case:
    """As transformers' models write it."""

    def own(torch: Any) -> Callable[..., Any]:
        def norm(x: Any, weight: Any) -> Any:
            wide = x.to(torch.float32)
            normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return weight * normal.to(x.dtype)

        return norm

    def jax(jax: Any) -> Callable[..., Any]:
        def norm(x: Any, weight: Any) -> Any:
            wide = x.astype("float32")
            normal = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
            return weight * normal.astype(x.dtype)

        return norm

    arrays = (Array((rows, 1000), dtype), Array((1000,), dtype))
    return _kernel(f"RMS norm of {rows} x 1000, {SHORT[dtype]}", arrays, own, jax)


_MILLION = Array((1000, 1000))

CASES = (
    _matmul(512, "float32"),
    _matmul(1024, "float32"),
    _matmul(512, "bfloat16"),
    _matmul(1024, "bfloat16"),
    _linear("float32"),
    _linear("bfloat16"),
    _convolution("3x3 convolution", (4, 64, 56, 56), (64, 64, 3, 3)),
    _convolution("3x3 convolution", (4, 64, 56, 56), (64, 64, 3, 3), dtype="bfloat16"),
    _convolution("1x1 convolution", (4, 256, 28, 28), (512, 256, 1, 1)),
    _convolution("7x7 convolution, stride 2", (4, 3, 224, 224), (64, 3, 7, 7), stride=2),
    _convolution("3x3 depthwise convolution", (4, 128, 56, 56), (128, 1, 3, 3)),
    _softmax(10),
    _softmax(1000),
    _layer_norm(1000, "float32"),
    _layer_norm(1000, "bfloat16"),
    _rms_norm(1000, "float32"),
    _rms_norm(1000, "bfloat16"),
    _kernel(
        "gelu of a product and a sum, 1000 x 1000",
        (_MILLION, _MILLION, _MILLION),
        lambda torch: lambda x, y, z: torch.nn.functional.gelu(x * y + z),
        lambda jax: lambda x, y, z: jax.nn.gelu(x * y + z, approximate=False),
    ),
    _kernel(
        "sum of 1000 x 1000",
        (_MILLION,),
        lambda torch: lambda x: x.sum(),
        lambda jax: lambda x: x.sum(),
    ),
    _kernel(
        "argmax over rows of 1000 x 1000",
        (_MILLION,),
        lambda torch: lambda x: x.argmax(-1),
        lambda jax: lambda x: x.argmax(-1),
    ),
    _kernel(
        "embedding, 2048 of 30000 x 256",
        (Array((30_000, 256)), Array((2048,), "int64", below=30_000)),
        lambda torch: lambda table, index: torch.nn.functional.embedding(index, table),
        lambda jax: lambda table, index: table[index],
    ),
    _kernel(
        "cumulative sum over rows of 1000 x 1000",
        (_MILLION,),
        lambda torch: lambda x: x.cumsum(-1),
        lambda jax: lambda x: x.cumsum(-1),
    ),
    _kernel(
        "sort of rows of 100 x 1000",
        (Array((100, 1000)),),
        lambda torch: lambda x: x.sort(-1)[0],
        lambda jax: lambda x: jax.numpy.sort(x, -1),
    ),
)
