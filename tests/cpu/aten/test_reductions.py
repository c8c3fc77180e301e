"""Sums and extremes of what is in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.aten.calls import TARGET
from pjrt_bridge_cpu.aten.kernels import CpuKernels
from pjrt_bridge_cpu.aten.rules import FLOAT32, UsableKernels
from tests.cpu.aten.comparing import compare

pytestmark = pytest.mark.usefixtures("always", "fresh")

X = torch.randn(5, 6, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dims", [(2,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("name", ["sum", "amax", "amin"])
def test_the_last_dimensions(name: str, dims: tuple[int, ...], written: Counter[str]) -> None:
    compare(lambda x: getattr(torch, name)(x, dims), X)
    assert sum(written.values()) >= 1


def test_not_a_number_stays(written: Counter[str]) -> None:
    x = X.clone()
    x[2, 3, 4] = float("nan")
    compare(lambda x: (x.amax(-1), x.amin((1, 2)), x.sum(-1)), x)
    assert set(written) == {"amax.out", "amin.out", "sum.IntList_out"}


@pytest.mark.parametrize(
    ("made", "dims", "called"),
    [
        (lambda b, x: x, (2,), True),
        (lambda b, x: b.stored(b.exp(x)), (1, 2), True),
        (lambda b, x: b.exp(x), (2,), False),
        (lambda b, x: x, (0,), False),
        (lambda b, x: b.transpose(x, (0, 2, 1)), (2,), False),
        (lambda b, x: b.slice(x, (0, 0, 0), (5, 6, 1)), (2,), False),
    ],
)
def test_what_is_computed_as_it_is_read_stays_with_xla(
    made: Callable[[Builder, Value], Value], dims: tuple[int, ...], called: bool
) -> None:
    builder = Builder([TensorType(tuple(X.shape), FLOAT32)])
    kernels = CpuKernels(UsableKernels(lambda name: True))
    result = kernels.reduce(builder, "sum", made(builder, builder.parameters[0]), dims)
    assert (TARGET in builder.finish([result]).custom_calls) == called
