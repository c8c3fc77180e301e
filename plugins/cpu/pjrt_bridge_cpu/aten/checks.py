"""Programs that try every use of PyTorch's kernels, beside the operator itself.

Sizes are odd, so that parts of unequal length and every attribute that the rules let through occur.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Transpose = Callable[[Any, Sequence[int]], Any]
"""Transposes a tensor, or a value of a program."""

Arguments = Callable[[Transpose, Sequence[Any]], Sequence[Any]]
"""The arguments of an operator, of tensors or of a program's parameters."""

FLOATS = (torch.float32, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
NUMBERS = (*FLOATS, torch.float64, torch.int32, torch.int64)


@dataclass(frozen=True)
class TriedUse:
    """One use.

    Attributes:
        operator: of a graph, such as `aten.mm.default`.
        tensors: what a program is given.
        arguments: of the operator.
        keywords: more arguments, by the place of a tensor.
    """

    operator: str
    tensors: tuple[torch.Tensor, ...]
    arguments: Arguments = field(default=lambda transpose, values: values)
    keywords: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = ", ".join(f"{str(t.dtype)[6:]}{list(t.shape)}" for t in self.tensors)
        return f"{self.operator} of {shapes}"

    def expected(self) -> tuple[torch.Tensor | None, ...]:
        """The results that PyTorch gives; None for those not asked for."""
        _, name, overload = self.operator.split(".")
        function = getattr(getattr(torch.ops.aten, name), overload)
        arguments = self.arguments(lambda x, order: x.permute(*order), self.tensors)
        given = {name: self.tensors[place] for name, place in self.keywords.items()}
        results = function(*arguments, **given)
        return results if isinstance(results, tuple) else (results,)

    @property
    def tolerance(self) -> float:
        """Difference that is allowed, in units of the largest element.

        Parts may be summed in another order than the whole.
        """
        return 2.0**-7 if {t.dtype for t in self.tensors} & {*HALVES} else 1e-5


def checks() -> Iterator[TriedUse]:
    """All of them."""
    for dtype in FLOATS:
        yield from _products(dtype)
        yield from _convolutions(dtype)
        yield from _attention(dtype)
        table, places = (
            _drawn((300, 450), dtype),
            torch.arange(0, 296, 8, device="cpu").reshape(1, 37),
        )
        yield TriedUse("aten.embedding.default", (table, places))
        for operator in ("_softmax", "_log_softmax"):
            yield _rows(operator, dtype, -1, False)
    for dtype in NUMBERS:
        yield from _orders(dtype)
    for dtype in (torch.float32, torch.float64):
        yield from _transforms(dtype)
    for dtype in COMPLEX:
        sides = _drawn_complex((3, 70, 90), dtype), _drawn_complex((3, 57, 90), dtype)
        yield TriedUse("aten.bmm.default", sides, transposed_right(0, 2, 1))
        yield TriedUse("aten.mm.default", tuple(s[0] for s in sides), transposed_right(1, 0))
    for operator in ("sum.dim_IntList", "amax.default", "amin.default"):
        x = _drawn((370, 250), torch.float32)
        yield TriedUse(f"aten.{operator}", (x,), lambda _, v: (*v, [1]))
    for dtype in (torch.float32, torch.float64):
        a = _drawn((3, 7, 7), dtype)
        for matrices in (a, torch.complex(a, a.mT)):
            yield TriedUse("aten.linalg_eig.default", (matrices,))
    for dtype in HALVES:
        yield TriedUse("aten.linalg_matrix_exp.default", (_drawn((3, 7, 7), dtype),))
        for count in (2, 3):
            image, grid = (3, 4, *[9] * count), (3, *[5] * count, count)
            forward = tuple(_drawn(shape, dtype) for shape in (image, grid))
            backward = (_drawn((3, 4, *[5] * count), dtype), *forward)
            name = f"aten.grid_sampler_{count}d"
            yield TriedUse(f"{name}.default", forward, lambda _, v: (*v, 0, 2, False))
            yield TriedUse(
                f"{name}_backward.default", backward, lambda _, v: (*v, 0, 2, False, (True, True))
            )


def followed_by(arguments: Sequence[Any]) -> Arguments:
    """A use of tensors and of these arguments after them."""
    return lambda _, v: (*v, *arguments)


def transposed_right(*order: int) -> Arguments:
    """The arguments of a product whose right side is given transposed."""
    return lambda transpose, v: (v[0], transpose(v[1], order))


def _drawn_complex(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    real = _drawn(shape, dtype.to_real())
    return torch.complex(real, real.flip(0, 1))


def _products(dtype: torch.dtype) -> Iterator[TriedUse]:
    for rows, inner, columns in ((70, 90, 57), (170, 270, 197)):
        yield TriedUse(
            "aten.mm.default",
            (_drawn((rows, inner), dtype), _drawn((columns, inner), dtype)),
            transposed_right(1, 0),
        )
    yield TriedUse(
        "aten.bmm.default",
        (_drawn((3, 70, 90), dtype), _drawn((3, 57, 90), dtype)),
        transposed_right(0, 2, 1),
    )
    if dtype == torch.bfloat16:
        yield TriedUse(
            "aten.addmm.default",
            tuple(_drawn(shape, dtype) for shape in ((57,), (70, 90), (57, 90))),
            lambda transpose, v: (v[0], v[1], transpose(v[2], (1, 0))),
        )


def _convolutions(dtype: torch.dtype) -> Iterator[TriedUse]:
    def check(
        data: Sequence[int],
        kernel: Sequence[int],
        *,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        transposed: bool = False,
        groups: int = 1,
    ) -> Iterator[TriedUse]:
        x, weight = _drawn(data, dtype), _drawn(kernel, dtype)
        channels = kernel[1] * groups if transposed else kernel[0]
        count = len(data) - 2
        window = [[value] * count for value in (stride, padding, dilation)]
        rest = (*window, transposed, [0] * count, groups)
        forward = TriedUse(
            "aten.convolution.default",
            (x, weight, _drawn((channels,), dtype)),
            lambda _, v: (*v, *rest),
        )
        yield forward
        (result,) = forward.expected()
        assert result is not None
        yield TriedUse(
            "aten.convolution_backward.default",
            (_drawn(result.shape, dtype), x, weight),
            lambda _, v: (*v, [channels], *rest, [True, True, False]),
        )

    for spatial, size in ((1, 700), (2, 26), (3, 9)):
        data, kernel = (3, 10, *[size] * spatial), (14, 10, *[3] * spatial)
        yield from check(data, kernel, padding=1)
        yield from check(data, kernel, stride=2, dilation=2)
        yield from check((1, *data[1:]), kernel, stride=2, padding=1)
        yield from check(data, (10, 14, *[3] * spatial), transposed=True, stride=2, padding=1)
    yield from check((3, 12, 30, 30), (18, 4, 3, 3), groups=3)
    yield from check((3, 40, 20, 20), (40, 1, 3, 3), groups=40, padding=1)
    yield from check((3, 20, 26, 26), (30, 20, 1, 1))
    yield TriedUse(
        "aten.convolution.default",
        tuple(_drawn(shape, dtype) for shape in ((3, 26, 26, 20), (30, 20, 1, 1), (30,))),
        lambda transpose, v: (
            transpose(v[0], (0, 3, 1, 2)),
            *v[1:],
            *([value] * 2 for value in (1, 0, 1)),
            False,
            [0, 0],
            1,
        ),
    )


def _attention(dtype: torch.dtype) -> Iterator[TriedUse]:
    def check(batch: int, causal: bool, mask: torch.Tensor | None) -> Iterator[TriedUse]:
        # As models give them: the heads of a place side by side.
        sides = tuple(_drawn((batch, 60, 4, 16), dtype) for _ in range(3))
        masks = () if mask is None else (mask,)

        def turned(transpose: Transpose, values: Sequence[Any]) -> list[Any]:
            return [transpose(side, (0, 2, 1, 3)) for side in values]

        forward = TriedUse(
            "aten._scaled_dot_product_flash_attention_for_cpu.default",
            (*sides, *masks),
            lambda transpose, v: (*turned(transpose, v[:3]), 0.0, causal),
            {} if mask is None else {"attn_mask": 3},
        )
        yield forward
        output, rows = forward.expected()
        assert output is not None
        assert rows is not None
        yield TriedUse(
            "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
            (*sides, _drawn(output.shape, dtype), output.contiguous(), rows.contiguous(), *masks),
            lambda transpose, v: (v[3], *turned(transpose, v[:3]), v[4], v[5], 0.0, causal),
            {} if mask is None else {"attn_mask": 6},
        )

    yield from check(3, True, None)
    yield from check(1, False, _drawn((60, 60), dtype))
    yield from check(3, False, _drawn((3, 1, 60, 60), dtype))


def _transforms(dtype: torch.dtype) -> Iterator[TriedUse]:
    real = _drawn((37, 11, 30), dtype)
    numbers = torch.complex(real, real.flip(0))
    for dims in ([2], [1], [0, 1, 2]):
        for forward in (True, False):
            rest = dims, 0, forward
            yield TriedUse("aten._fft_c2c.default", (numbers,), followed_by(rest))
        yield TriedUse("aten._fft_r2c.default", (real,), followed_by((dims, 0, True)))
        half = torch.fft.rfftn(real, dim=dims)
        size = real.shape[dims[-1]]
        yield TriedUse("aten._fft_c2r.default", (half,), followed_by((dims, 0, size)))


def _rows(operator: str, dtype: torch.dtype, *arguments: Any) -> TriedUse:
    x = _drawn((37, 150), dtype)
    return TriedUse(f"aten.{operator}.default", (x,), followed_by(arguments))


def _orders(dtype: torch.dtype) -> Iterator[TriedUse]:
    yield _rows("topk", dtype, 9, 1)
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        if dtype.is_floating_point or name != "logcumsumexp":
            yield _rows(name, dtype, 1)


def _drawn(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Numbers of which those of a row all differ, also in bfloat16."""
    rows, length = math.prod(shape[:-1]), shape[-1]
    generator = torch.Generator().manual_seed(math.prod(shape))
    steps = torch.rand(rows, length, generator=generator, device="cpu").argsort(1) - length // 2
    if not dtype.is_floating_point:
        return steps.reshape(shape).to(dtype)
    # Bfloat16 has 8 bits for what is not a power of two.
    return (steps.reshape(shape) * 2.0 ** -math.ceil(math.log2(max(length, 4)) - 1)).to(dtype)
