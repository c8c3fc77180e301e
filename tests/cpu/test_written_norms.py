"""Norms that programs write out: which of them are calls, and their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import rsqrt

from pjrt_bridge.registry.targets import for_client
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge_cpu.norms import TARGET

Function = Callable[[Any, Any, Any], Any]


def over_rows(x: Any) -> Any:
    return x.mean(-1, keepdims=True)


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    variance = x.var(-1, keepdims=True)
    return (x - over_rows(x)) * rsqrt(variance + 1e-5) * weight + bias


def weight_first(x: Any, weight: Any, bias: Any) -> Any:
    beyond = x - over_rows(x)
    return bias + beyond * (rsqrt(over_rows(beyond * beyond) + 1e-6) * weight)


def rms_norm(x: Any, weight: Any, bias: Any) -> Any:
    return x * rsqrt(over_rows(jnp.square(x)) + 1e-5) * weight


def narrow_rms_norm(x: Any, weight: Any, bias: Any) -> Any:
    narrow = x.astype(jnp.bfloat16)
    wide = narrow.astype(jnp.float32)
    normal = wide * rsqrt(over_rows(wide * wide) + 1e-5)
    return weight.astype(jnp.bfloat16) * normal.astype(jnp.bfloat16)


def several_dimensions(x: Any, weight: Any, bias: Any) -> Any:
    mean = x.mean((1, 2), keepdims=True)
    variance = jnp.square(x - mean).mean((1, 2), keepdims=True)
    return (x - mean) * rsqrt(variance + 1e-5)


def on_a_product(x: Any, weight: Any, bias: Any) -> Any:
    return layer_norm(x * x, weight, bias)


def before_a_function(x: Any, weight: Any, bias: Any) -> Any:
    return jnp.tanh(x * rsqrt(over_rows(x * x) + 1e-5)) + bias


def over_columns(x: Any, weight: Any, bias: Any) -> Any:
    return x * rsqrt((x * x).mean(0, keepdims=True) + 1e-5)


def over_middle(x: Any, weight: Any, bias: Any) -> Any:
    return x * rsqrt((x * x).mean(1, keepdims=True) + 1e-5)


def unbiased(x: Any, weight: Any, bias: Any) -> Any:
    variance = x.var(-1, keepdims=True, ddof=1)
    return (x - over_rows(x)) * rsqrt(variance + 1e-5) * weight + bias


def of_another_value(x: Any, weight: Any, bias: Any) -> Any:
    return jnp.sin(x) * rsqrt(over_rows(x * x) + 1e-5) * weight


def with_another_mean(x: Any, weight: Any, bias: Any) -> Any:
    return (x - over_rows(x) * 2) * rsqrt(x.var(-1, keepdims=True) + 1e-5)


def by_a_variance(x: Any, weight: Any, bias: Any) -> Any:
    """The value is not centered, but its variance is."""
    return x * rsqrt(x.var(-1, keepdims=True) + 1e-5)


def twice(x: Any, weight: Any, bias: Any) -> Any:
    """The norm is a call, and what it is multiplied by no weight."""
    return x * (x * rsqrt(over_rows(x * x) + 1e-5))


def whose_deviation_is_needed(x: Any, weight: Any, bias: Any) -> Any:
    deviation = rsqrt(over_rows(x * x) + 1e-5)
    return x * deviation * weight, deviation


CASES: dict[Function, bool] = {
    layer_norm: True,
    weight_first: True,
    rms_norm: True,
    narrow_rms_norm: True,
    several_dimensions: True,
    on_a_product: True,
    before_a_function: True,
    over_columns: False,
    over_middle: False,
    unbiased: False,
    of_another_value: False,
    with_another_mean: False,
    by_a_variance: False,
    twice: True,
    whose_deviation_is_needed: False,
}


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_which_norms_that_jax_wrote_are_calls(function: Function, client: Client) -> None:
    random = np.random.default_rng(0)
    shapes = ((8, 96, 96), (96,), (96,))
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    text = jax.jit(function, keep_unused=True).lower(*arrays).as_text()
    written = Program.from_text(text)
    program = for_client(written, client)
    assert (TARGET in program.text) == CASES[function]
    results = [client.compile(item)(*arrays) for item in (written, program)]
    tolerance = 2.0**-6 if function is narrow_rms_norm else 1e-5
    for one, other in zip(*results, strict=True):
        pair = [np.asarray(item).astype(np.float32) for item in (one, other)]
        np.testing.assert_allclose(pair[1], pair[0], rtol=tolerance, atol=tolerance)
