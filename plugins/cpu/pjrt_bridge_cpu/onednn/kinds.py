"""The kinds of calls: each with programs that check it, and programs that measure it.

A program of a kind comes twice: with the call, and as XLA computes it. The checks have odd sizes
and every attribute that `kernels` lets through; the ladder has sizes that grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder import Builder, Value
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.onednn import calls
from pjrt_bridge_cpu.onednn.calls import BFLOAT16, FLOAT32, Window

TOLERANCE = {FLOAT32: 2e-5, BFLOAT16: 2.0**-7}
"""Difference to XLA's result, in units of its largest element."""

PRODUCT = "bfloat16_product"
"""The kind of a product. In float32 XLA has Eigen, which is as fast, but for a few rows times
transposed weights (see `turning`): a call there would cost every process a compilation."""

Body = Callable[[Builder, Sequence[Value]], Value]


@dataclass(frozen=True)
class Case:
    """One computation, said in two ways.

    Attributes:
        size: multiplications.
        types: of the arguments.
        call: it, with a call of oneDNN.
        plain: it, as XLA computes it.
    """

    size: int
    types: tuple[TensorType, ...]
    call: Body
    plain: Body


@dataclass(frozen=True)
class Kind:
    """A way of using oneDNN that is right and fast, or not, as a whole.

    Attributes:
        name: for people and files.
        tolerance: see `TOLERANCE`.
        checks: have to give XLA's numbers.
        ladder: is measured, smallest first; the first one is the least that is worth a question.
    """

    name: str
    tolerance: float
    checks: tuple[Case, ...]
    ladder: tuple[Case, ...]

    @property
    def least(self) -> int:
        """The size below which nobody needs to measure."""
        return self.ladder[0].size


@cache
def kinds() -> Mapping[str, Kind]:
    """All kinds by name."""
    found = [
        _products(),
        *(
            _convolutions(form, spatial, dtype)
            for dtype in ("bfloat16", "float32")
            for spatial in (1, 2, 3)
            for form in ("dense", "pointwise", "grouped")
        ),
    ]
    return {kind.name: kind for kind in found}


def convolution_kind(dtype: DType, kernel: Sequence[int], groups: int) -> str:
    """The kind of a convolution."""
    form = "grouped" if groups > 1 else "pointwise" if math.prod(kernel) == 1 else "dense"
    return f"{dtype}_{form}_convolution_{len(kernel)}d"


def _products() -> Kind:
    def case(batch: tuple[int, ...], m: int, k: int, n: int, a: bool, t: bool, out: DType) -> Case:
        rank = len(batch) + 2
        swap = (*range(rank - 2), rank - 1, rank - 2)
        types = (
            TensorType((*batch, k, m) if a else (*batch, m, k), BFLOAT16),
            TensorType((*batch, n, k) if t else (*batch, k, n), BFLOAT16),
        )

        def call(b: Builder, values: Sequence[Value]) -> Value:
            x, y = values
            return calls.matmul(b, x, y, out, transpose_x=a, transpose_y=t)

        def plain(b: Builder, values: Sequence[Value]) -> Value:
            x, y = (
                b.transpose(value, swap) if swapped else value
                for value, swapped in zip(values, (a, t), strict=True)
            )
            dims = tuple(range(rank - 2))
            total = b.dot_general(
                x,
                y,
                lhs_batch=dims,
                rhs_batch=dims,
                lhs_contract=(rank - 1,),
                rhs_contract=(rank - 2,),
                out_dtype=FLOAT32,
            )
            return total if out == FLOAT32 else b.convert(total, out)

        return Case(math.prod(batch) * m * k * n, types, call, plain)

    checks = [
        case(batch, 33, 70, 57, a, t, out)
        for batch in ((), (3,), (2, 3))
        for a, t in ((False, False), (True, False), (False, True), (True, True))
        for out in (BFLOAT16, FLOAT32)
    ]
    ladder = [case((), n, n, n, False, True, BFLOAT16) for n in (96, 160, 256, 400, 640)]
    return Kind(PRODUCT, TOLERANCE[BFLOAT16], tuple(checks), tuple(ladder))


def _convolutions(form: str, spatial: int, name: str) -> Kind:
    dtype = dtypes.of(name)
    kernel = 1 if form == "pointwise" else 3

    def case(
        n: int,
        channels: int,
        out_channels: int,
        size: int,
        groups: int = 1,
        *,
        stride: int = 1,
        dilation: int = 1,
        padding: tuple[int, int] = (0, 0),
        input_first: bool = False,
        out: DType = dtype,
    ) -> Case:
        low, high = padding
        after = (size + low + high - (kernel - 1) * dilation - 1) // stride + 1
        window = Window(*((value,) * spatial for value in (stride, low, high, dilation)))
        sides = (channels // groups, out_channels)
        kernel_shape = (*(sides if input_first else sides[::-1]), *(kernel,) * spatial)
        types = (
            TensorType((n, channels, *(size,) * spatial), dtype),
            TensorType(kernel_shape, dtype),
        )
        result = TensorType((n, out_channels, *(after,) * spatial), out)

        def call(b: Builder, values: Sequence[Value]) -> Value:
            x, weight = values
            return calls.convolution(
                b, x, weight, result, window=window, groups=groups, input_first=input_first
            )

        def plain(b: Builder, values: Sequence[Value]) -> Value:
            letters = "DHW"[-spatial:]
            total = b.convolution(
                *values,
                window_strides=window.strides,
                padding=list(zip(window.low, window.high, strict=True)),
                lhs_dilation=[1] * spatial,
                rhs_dilation=window.dilation,
                feature_group_count=groups,
                dimension_numbers=(
                    "NC" + letters,
                    ("IO" if input_first else "OI") + letters,
                    "NC" + letters,
                ),
                out_dtype=FLOAT32,
            )
            return total if out == FLOAT32 else b.convert(total, out)

        work = result.size * sides[0] * kernel**spatial
        return Case(work, types, call, plain)

    groups = 5 if form == "grouped" else 1
    checks = [
        case(2, 10, 15, 9, groups),
        case(1, 10, 10, 8, groups, stride=2),
        case(2, 10, 15, 7, groups, out=FLOAT32),
    ]
    if groups == 1:
        checks.append(case(2, 10, 15, 9, input_first=True))
    else:
        checks.append(case(2, 10, 10, 9, 10))
    if kernel > 1:
        checks += [
            case(2, 10, 15, 9, groups, padding=(1, 1)),
            case(1, 10, 10, 9, groups, padding=(2, 1), dilation=2),
            case(1, 10, 10, 10, groups, padding=(0, 1), stride=2),
        ]
    # As many channels and places as make the rungs of all forms alike in time.
    channels = {1: 64, 2: 64, 3: 16}[spatial]
    wide = channels if form == "grouped" else 1
    rungs = {1: (128, 512, 2048, 8192), 2: (8, 16, 32, 64), 3: (6, 10, 16, 24)}[spatial]
    pads = (kernel // 2, kernel // 2)
    ladder = [case(2, channels, channels, size, wide, padding=pads) for size in rungs]
    return Kind(
        f"{dtype}_{form}_convolution_{spatial}d", TOLERANCE[dtype], tuple(checks), tuple(ladder)
    )
