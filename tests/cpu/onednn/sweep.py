"""Random products and convolutions by the rules, against the portable kernels.

`python -m tests.cpu.onednn.sweep SEED COUNT` may die; it prints how many of them were calls.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt_bridge import dtypes, registry
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo.builder import Builder, Value
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.lowering.kernels import Convolution, Kernels
from pjrt_bridge_cpu.onednn.calls import FLOAT32
from pjrt_bridge_cpu.onednn.kernels import OneDnnKernels
from pjrt_bridge_cpu.onednn.kinds import TOLERANCE

Emit = Callable[[Kernels, Builder, tuple[Value, ...]], Value]


def product(draw: random.Random, dtype: DType, out: DType) -> tuple[list[TensorType], Emit]:
    batch = tuple(draw.randint(1, 3) for _ in range(draw.randint(0, 2)))
    m, k, n = (draw.choice((5, 16, 20, 31, 64)) for _ in range(3))
    flips = [draw.random() < 0.5 for _ in range(2)]
    shapes = [
        (*batch, *(sides[::-1] if flip else sides))
        for sides, flip in zip(((m, k), (k, n)), flips, strict=True)
    ]

    def emit(kernels: Kernels, b: Builder, values: tuple[Value, ...]) -> Value:
        rank = len(batch) + 2
        swap = (*range(rank - 2), rank - 1, rank - 2)
        x, y = (
            b.transpose(value, swap) if flip else value
            for value, flip in zip(values, flips, strict=True)
        )
        return kernels.product(b, x, y, wide=FLOAT32, dtype=out)

    return [TensorType(shape, dtype) for shape in shapes], emit


def convolution(draw: random.Random, dtype: DType, out: DType) -> tuple[list[TensorType], Emit]:
    spatial = draw.randint(1, 3)
    groups = draw.choice((1, 1, 2, 4))
    channels, features = groups * draw.randint(1, 5), groups * draw.randint(1, 5)
    first = groups == 1 and draw.random() < 0.3
    sides = (channels // groups, features)
    kernel = tuple(draw.randint(1, 4) for _ in range(spatial))
    x = (draw.randint(1, 3), channels, *(draw.randint(3, 9) for _ in range(spatial)))
    weight = (*(sides if first else sides[::-1]), *kernel)
    dilation = [draw.randint(1, 3) for _ in range(spatial)]
    # Once in a while beyond what the rules let through.
    beyond = 2 if draw.random() < 0.2 else 0
    reaches = [(taps - 1) * step + beyond for taps, step in zip(kernel, dilation, strict=True)]
    attributes: dict[str, Any] = {
        "window_strides": [draw.randint(1, 3) for _ in range(spatial)],
        "padding": [(draw.randint(0, r), draw.randint(-beyond, r)) for r in reaches],
        "lhs_dilation": [1 + (beyond > 0 and draw.random() < 0.2)] * spatial,
        "rhs_dilation": dilation,
        "feature_group_count": groups,
    }
    letters = "DHW"[-spatial:]
    numbers = ("NC" + letters, ("IO" if first else "OI") + letters, "NC" + letters)

    def emit(kernels: Kernels, b: Builder, values: tuple[Value, ...]) -> Value:
        how = Convolution(dimension_numbers=numbers, **attributes)
        return kernels.convolution(b, *values, how, wide=FLOAT32, dtype=out)

    return [TensorType(x, dtype), TensorType(weight, dtype)], emit


def main(seed: int, count: int) -> None:
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    client = registry.client("cpu")
    always, called = OneDnnKernels(lambda kind, size: True), 0
    for index in range(count):
        dtype = dtypes.of(draw.choice(("bfloat16", "float32")))
        out = draw.choice((dtype, FLOAT32))
        types, emit = (product if index % 3 == 0 else convolution)(draw, dtype, out)
        arrays = [numbers.standard_normal(t.shape).astype(dtype.numpy) for t in types]
        results = []
        for kernels in (Kernels(), always):
            builder = Builder(types)
            try:
                value = emit(kernels, builder, builder.parameters)
            except ProgramError:
                # No size of the result could be that small; both say so.
                results.append(None)
                continue
            program = builder.finish([value])
            called += bool(program.custom_calls)
            (result,) = client.compile(program).execute([client.put(array) for array in arrays])
            results.append(np.asarray(result).astype(np.float32))
        expected, found = results
        if expected is None or found is None:
            assert expected is found, f"{types}"
            continue
        scale = max(float(np.abs(expected).max(initial=0)), 1e-6)
        assert np.allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * scale), f"{types}"
    print(called)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
