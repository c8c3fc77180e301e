"""Which operators of a graph are an RMS norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.kernel_attributes import Norm
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit.norms import FoundNorm, find_norms

EPS = 1e-6
FLOAT32, BFLOAT16 = map(dtypes.of, ("float32", "bfloat16"))


def found(function: Callable[..., object], dtype: torch.dtype, *sizes: int) -> list[FoundNorm]:
    """The norms in a graph of a function of a tensor and a weight."""
    x, weight = torch.empty(sizes, dtype=dtype), torch.empty(sizes[-1:], dtype=dtype)
    module = make_fx(function, compat.decompositions(), tracing_mode="fake")(x, weight)
    return list(find_norms(module.graph))


def mean_of_squares(x: Tensor) -> Tensor:
    return x.pow(2).mean(-1, keepdim=True)


def llama(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(mean_of_squares(wide) + EPS)
    return weight * wide.to(x.dtype)


def t5(x: Tensor, weight: Tensor) -> Tensor:
    normal = x * torch.rsqrt(mean_of_squares(x.to(torch.float32)) + EPS)
    return weight * normal.to(weight.dtype)


def gemma(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    normal = wide * torch.rsqrt(mean_of_squares(wide) + EPS)
    return (normal * (1.0 + weight.float())).type_as(x)


def by_a_root(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return wide / torch.sqrt((wide * wide).mean(dim=-1, keepdim=True) + EPS) * weight.float()


def by_a_power(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return torch.pow(mean_of_squares(wide) + EPS, -0.5) * wide


def over_two_dimensions(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean((-2, -1), keepdim=True) + EPS)


def whose_deviation_is_a_result(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    deviation = torch.rsqrt(mean_of_squares(wide) + EPS)
    return wide * deviation * weight.float(), deviation


def whose_normal_is_a_result(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    normal = wide * torch.rsqrt(mean_of_squares(wide) + EPS)
    return normal, normal * weight


def norm(dtype: dtypes.DType, rounding: dtypes.DType | None = None, count: int = 1) -> Norm:
    return Norm(count, EPS, is_centered=False, dtype=dtype, rounding=rounding)


CASES: dict[Callable[..., object], tuple[bool, Norm, Norm]] = {
    llama: (True, norm(FLOAT32), norm(BFLOAT16, BFLOAT16)),
    t5: (True, norm(FLOAT32), norm(BFLOAT16, BFLOAT16)),
    gemma: (True, norm(FLOAT32), norm(BFLOAT16)),
    by_a_root: (True, norm(FLOAT32), norm(FLOAT32)),
    by_a_power: (False, norm(FLOAT32), norm(FLOAT32)),
    over_two_dimensions: (False, norm(FLOAT32, count=2), norm(FLOAT32, count=2)),
    whose_deviation_is_a_result: (True, norm(FLOAT32), norm(FLOAT32)),
    whose_normal_is_a_result: (False, norm(FLOAT32), norm(FLOAT32)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_what_is_one(function: Callable[..., object], dtype: torch.dtype) -> None:
    has_weight, wide, narrow = CASES[function]
    (one,) = found(function, dtype, 8, 32, 96)
    assert one.how == (wide if dtype == torch.float32 else narrow)
    assert (one.weight is not None) == has_weight
    assert compat.promise(one.x).dtype == torch.float32
    assert compat.promise(one.nodes[-1]).shape == (8, 32, 96)


def over_columns(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-2, keepdim=True) + EPS)


def of_another_value(x: Tensor, weight: Tensor) -> Tensor:
    return x.sin() * torch.rsqrt(mean_of_squares(x) + EPS)


def with_a_scaled_eps(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(torch.add(mean_of_squares(x), EPS, alpha=2))


def with_a_computed_eps(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(mean_of_squares(x) + weight[0])


def of_cubes(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + EPS)


def of_squares_that_are_given(x: Tensor, squares: Tensor) -> Tensor:
    return x * torch.rsqrt(squares.mean(-1, keepdim=True) + EPS)


def divided_by_the_reciprocal(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.rsqrt(mean_of_squares(x) + EPS)


def dividing_the_deviation(x: Tensor, weight: Tensor) -> Tensor:
    return torch.sqrt(mean_of_squares(x) + EPS) / x


def whose_deviation_is_needed_before(x: Tensor, weight: Tensor) -> Tensor:
    """The weight follows from it."""
    deviation = torch.rsqrt(mean_of_squares(x) + EPS)
    return x * deviation * (weight + deviation.sum())


NONE: list[Callable[..., object]] = [
    over_columns,
    of_another_value,
    with_a_scaled_eps,
    with_a_computed_eps,
    of_cubes,
    of_squares_that_are_given,
    divided_by_the_reciprocal,
    dividing_the_deviation,
    whose_deviation_is_needed_before,
]


@pytest.mark.parametrize("function", NONE, ids=lambda function: function.__name__)
def test_what_is_none(function: Callable[..., object]) -> None:
    assert not found(function, torch.float32, 8, 32, 96)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_other_element_types_are_none(dtype: torch.dtype) -> None:
    def own(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(mean_of_squares(x) + EPS) * weight

    assert not found(own, dtype, 8, 32, 96)


def test_small_ones_are_none() -> None:
    assert not found(llama, torch.float32, 2, 96)


def test_a_weight_for_each_row_is_none() -> None:
    def scaled(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(mean_of_squares(x) + EPS) * x.sum(-1, keepdim=True)

    (one,) = found(scaled, torch.float32, 8, 32, 96)
    assert one.weight is None


def test_nodes_are_in_order() -> None:
    def names(nodes: Any) -> list[str]:
        return [node.name for node in nodes if isinstance(node, fx.Node)]

    (one,) = found(llama, torch.bfloat16, 8, 32, 96)
    assert names(one.nodes) == ["pow_1", "mean", "add", "rsqrt", "mul", "_to_copy_1", "mul_1"]
