"""The uses of kernels whose gain is measured: a few sizes of each kind, as models have them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from pjrt_bridge_cpu import thin_products
from pjrt_bridge_cpu.aten.checks import (
    COMPLEX,
    FLOATS,
    Transpose,
    TriedUse,
    followed_by,
    transposed_right,
)

_THIN = ((1, 128, 128), (1, 512, 512), (1, 1024, 2048))
"""The same of products of few rows: of one, for which XLA's code is fastest."""

_LENGTHS = (64, 256, 512)
"""Of attention."""

_MATRICES = ((16, 128, 128), (64, 256, 256), (256, 512, 512))
"""Rows, inner size and columns of products."""

_ROWS = ((16, 256), (64, 1000), (512, 1000))

_ALONG: Sequence[tuple[str, tuple[Any, ...]]] = (
    ("_softmax", (-1, False)),
    ("_log_softmax", (-1, False)),
    ("cumsum", (1,)),
    ("logcumsumexp", (1,)),
    ("topk", (10, 1)),
)
"""Operators along a dimension, and what follows their tensor."""

_FORWARD = "aten._scaled_dot_product_flash_attention_for_cpu.default"
_BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"


def measured() -> Iterator[tuple[str, TriedUse]]:
    """Each kind that a program may call, at one size."""
    # What takes longest comes last: `timing` has so much time. Without instructions for bfloat16
    # PyTorch's gradients of convolutions take ten times as long as in float32.
    x = torch.randperm(64_000, device="cpu").reshape(64, 1000)
    for name, arguments in _ALONG:
        if name in ("cumsum", "topk"):
            yield name, TriedUse(f"aten.{name}.default", (x,), followed_by(arguments))
    yield from _transforms()
    for dtype in COMPLEX:
        yield from _complex_products(dtype)
    for dtype in FLOATS:
        yield from _rows(dtype)
    for dtype in FLOATS:
        yield from _products(dtype)
        yield from _attention(dtype)
        yield from _convolutions(dtype)


def _products(dtype: torch.dtype) -> Iterator[tuple[str, TriedUse]]:
    for rows, inner, columns in _THIN:
        sides = _drawn((rows, inner), dtype), _drawn((columns, inner), dtype)
        yield thin_products.KIND, TriedUse("aten.mm.default", sides, transposed_right(1, 0))
    for rows, inner, columns in _MATRICES:
        sides = _drawn((rows, inner), dtype), _drawn((columns, inner), dtype)
        product = TriedUse("aten.mm.default", sides, transposed_right(1, 0))
        yield "product", product
        if dtype == torch.float32:
            yield "product by oneDNN", product
            sides = _drawn((rows, inner), dtype), _drawn((inner, columns), dtype)
            yield "product of sides in order", TriedUse("aten.mm.default", sides)
            sides = _drawn((inner, rows), dtype), _drawn((inner, columns), dtype)
            product = TriedUse("aten.mm.default", sides, _transposed_left)
            yield "product of a transposed left side", product
        else:
            bias = _drawn((columns,), dtype)
            yield "linear", TriedUse("aten.addmm.default", (*sides, bias), _with_bias)
    for rows, inner in ((32, 32), (128, 64), (256, 64)):
        sides = _drawn((8, rows, inner), dtype), _drawn((8, rows, inner), dtype)
        yield "product of batches", TriedUse("aten.bmm.default", sides, transposed_right(0, 2, 1))
        if dtype == torch.float32:
            sides = _drawn((8, rows, inner), dtype), _drawn((8, inner, rows), dtype)
            yield "product of batches in order", TriedUse("aten.bmm.default", sides)
            sides = _drawn((8, inner, rows), dtype), _drawn((8, inner, rows), dtype)
            product = TriedUse(
                "aten.bmm.default", sides, partial(_transposed_left, order=(0, 2, 1))
            )
            yield "product of batches of a transposed left side", product


def _complex_products(dtype: torch.dtype) -> Iterator[tuple[str, TriedUse]]:
    for rows, inner, columns in _MATRICES:
        sides = _drawn((rows, inner), dtype), _drawn((columns, inner), dtype)
        yield "product", TriedUse("aten.mm.default", sides, transposed_right(1, 0))
    for rows in (8, 32):
        sides = _drawn((64, rows, rows), dtype), _drawn((64, rows, rows), dtype)
        use = TriedUse("aten.bmm.default", sides, transposed_right(0, 2, 1))
        yield "product of batches", use


def _transposed_left(
    transpose: Transpose, v: Sequence[Any], order: Sequence[int] = (1, 0)
) -> Sequence[Any]:
    return transpose(v[0], order), v[1]


def _with_bias(transpose: Transpose, v: Sequence[Any]) -> Sequence[Any]:
    return v[2], *transposed_right(1, 0)(transpose, v)


def _convolutions(dtype: torch.dtype) -> Iterator[tuple[str, TriedUse]]:
    for channels, size in ((16, 14), (32, 28), (64, 48)):
        yield from _convolution(dtype, channels, (size, size), 1)
    for channels, size in ((32, 14), (64, 28), (96, 56)):
        yield from _convolution(dtype, channels, (size, size), channels)
    yield from _convolution(dtype, 64, (28, 28), 4)
    for length in (64, 512):
        yield from _convolution(dtype, 64, (length,), 1)
    for size in (6, 16):
        yield from _convolution(dtype, 16, (size, size, size), 1)
    yield from _convolution(dtype, 32, (14, 14), 1, transposed=True)


def _convolution(
    dtype: torch.dtype,
    channels: int,
    sizes: Sequence[int],
    groups: int,
    *,
    transposed: bool = False,
) -> Iterator[tuple[str, TriedUse]]:
    """A convolution of data as those before and after it have it, and its gradients."""
    count = len(sizes)
    # PyTorch knows no channels last for one dimension.
    last = count > 1
    shape = (2, *sizes, channels) if last else (2, channels, *sizes)
    order = (0, count + 1, *range(1, count + 1)) if last else (0, 1, 2)
    data = _drawn(shape, dtype)
    weight = _drawn((channels, channels // groups, *[3] * count), dtype)
    stride = 1 + transposed
    window = [stride] * count, [1] * count, [1] * count, transposed, [0] * count, groups
    how = "depthwise " if groups == channels else "grouped " if groups > 1 else ""
    kind = f"{'transposed ' * transposed}{how}{count}-d convolution"
    forward = TriedUse(
        "aten.convolution.default",
        (data, weight, _drawn((channels,), dtype)),
        lambda transpose, v: (transpose(v[0], order), *v[1:], *window),
    )
    yield kind, forward
    if count != 2:
        return
    (result,) = forward.expected()
    assert result is not None
    inverse = (0, *range(2, count + 2), 1)
    grad = result.permute(inverse).contiguous()
    for index, of in enumerate(("data", "weight")):
        rest = [channels], *window, [place == index for place in range(3)]
        gradient = TriedUse(
            "aten.convolution_backward.default",
            (grad, data, weight),
            partial(_of_gradient, order, rest),
        )
        yield f"{kind} backward to {of}", gradient


def _of_gradient(
    order: Sequence[int], rest: Sequence[Any], transpose: Transpose, v: Sequence[Any]
) -> Sequence[Any]:
    grad, data, weight = v
    return transpose(grad, order), transpose(data, order), weight, *rest


def _attention(dtype: torch.dtype) -> Iterator[tuple[str, TriedUse]]:
    for length in _LENGTHS:
        sides = tuple(_drawn((1, length, 4, 64), dtype) for _ in range(3))
        mask = _drawn((1, 1, length, length), dtype)
        ways: Sequence[tuple[str, bool, tuple[torch.Tensor, ...]]] = (
            ("", False, ()),
            ("causal ", True, ()),
            ("masked ", False, (mask,)),
        )
        for how, causal, masks in ways:
            named = [{"attn_mask": place} if masks else {} for place in (3, 6)]
            arguments = partial(_of_attention, causal)
            forward = TriedUse(_FORWARD, (*sides, *masks), arguments, named[0])
            yield f"{how}attention", forward
            output, rows = forward.expected()
            assert output is not None
            assert rows is not None
            saved = (_drawn(output.shape, dtype), output.contiguous(), rows.contiguous())
            arguments = partial(_of_attention_backward, causal)
            backward = TriedUse(_BACKWARD, (*sides, *saved, *masks), arguments, named[1])
            yield f"{how}attention backward", backward


def _of_attention(causal: bool, transpose: Transpose, v: Sequence[Any]) -> Sequence[Any]:
    return *_turned(transpose, v[:3]), 0.0, causal


def _of_attention_backward(causal: bool, transpose: Transpose, v: Sequence[Any]) -> Sequence[Any]:
    return v[3], *_turned(transpose, v[:3]), *v[4:6], 0.0, causal


def _turned(transpose: Transpose, sides: Sequence[Any]) -> list[Any]:
    return [transpose(side, (0, 2, 1, 3)) for side in sides]


def _transforms() -> Iterator[tuple[str, TriedUse]]:
    for shape in ((4, 64), (16, 256), (64, 1024)):
        for dtype in (torch.float32, torch.float64):
            x = _drawn(shape, dtype)
            for kind, numbers, *arguments in (
                ("_fft_r2c", x, 0, True),
                ("_fft_c2r", torch.fft.rfft(x), 2, shape[1]),
                ("_fft_c2c", torch.complex(x, x), 0, True),
            ):
                use = f"aten.{kind}.default"
                yield kind, TriedUse(use, (numbers,), followed_by(([1], *arguments)))


def _rows(dtype: torch.dtype) -> Iterator[tuple[str, TriedUse]]:
    for shape in _ROWS:
        x = _drawn(shape, dtype)
        for name, arguments in _ALONG:
            yield name, TriedUse(f"aten.{name}.default", (x,), followed_by(arguments))


def _drawn(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape))
    return torch.randn(tuple(shape), generator=generator, device="cpu").to(dtype)
