"""Functions in vectors: their numbers for every size of argument, where they are used, time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt_bridge
from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Program, TensorType, Value
from pjrt_bridge.stablehlo.patterns import for_target
from pjrt_bridge_cpu.functions import LEAST, VectorFunctions, cosine, log1p, sine, tangent
from tests.cpu.helpers import emitted
from tests.extent import examples

FLOAT32 = dtypes.of("float32")
Written = Callable[[Builder, Value], Value]
FUNCTIONS: dict[str, tuple[Written, Written, Callable[[Any], Any], float]] = {
    "sine": (sine, Builder.sin, np.sin, 2),
    "cosine": (cosine, Builder.cos, np.cos, 2),
    "tan": (tangent, Builder.tan, np.tan, 4),
    "log_plus_one": (log1p, Builder.log1p, np.log1p, 3),
}
"""By operation: as written here, as the operation, as NumPy has it; errors in last places."""

pytestmark = pytest.mark.usefixtures("fresh")

NAMES = pytest.mark.parametrize("name", FUNCTIONS)


def program(written: Written, size: int, dtype: str = "float32") -> Program:
    builder = Builder([TensorType((size,), dtypes.of(dtype))])
    return builder.finish([written(builder, *builder.parameters)])


def computed(client: Client, written: Written, x: Any) -> Any:
    (found,) = client.compile(program(written, x.size))(x)
    return np.asarray(found)


def last_places(found: Any, exact: Any) -> Any:
    """How far results are from float64's, in units of the last place of a normal float32."""
    unit = np.maximum(np.spacing(np.abs(exact).astype(np.float32)), np.finfo(np.float32).tiny)
    return np.abs(found.astype(np.float64) - exact) / unit


def drawn(seed: int) -> Any:
    """Normal numbers of every exponent, and as many that models have."""
    rng = np.random.default_rng(seed)
    bits = (
        rng.integers(1 << 23, 255 << 23, 4096, np.uint32)
        | rng.integers(0, 2, 4096, np.uint32) << 31
    )
    return np.concatenate([bits.view(np.float32), rng.normal(0, 30, 4096).astype(np.float32)])


@NAMES
@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_numbers_are_right_to_some_last_places(name: str, seed: int) -> None:
    written, _, exact, error = FUNCTIONS[name]
    x = drawn(seed)
    if name == "log_plus_one":
        x = np.where(x > -1, x, -x)
    found = computed(pjrt_bridge.client("cpu"), written, x)
    assert last_places(found, exact(x.astype(np.float64))).max() <= error


@NAMES
def test_zeros_infinities_and_what_is_no_number(name: str) -> None:
    written, _, exact, _ = FUNCTIONS[name]
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -2.0, 1e-30, -1e-30], np.float32)
    with np.errstate(all="ignore"):
        expected = exact(x.astype(np.float64)).astype(np.float32)
    found = computed(pjrt_bridge.client("cpu"), written, np.resize(x, 64 * x.size))[: x.size]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(found)[:2], np.signbit(expected)[:2])


@pytest.mark.parametrize("turns", [1, 7, 1 << 20])
def test_angles_beside_multiples_of_quarter_turns(turns: int) -> None:
    """There digits cancel, and the quarter is another one on each side."""
    at = np.float32(turns * math.pi / 2)
    x = at + np.arange(-500, 500, dtype=np.float32) * np.spacing(at)
    for name in ("sine", "cosine"):
        written, _, exact, error = FUNCTIONS[name]
        found = computed(pjrt_bridge.client("cpu"), written, x)
        assert last_places(found, exact(x.astype(np.float64))).max() <= error


CALLS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "sine": ("sine", torch.sin),
    "cosine": ("cosine", torch.cos),
    "tan": ("tan", torch.tan),
    "log1p": ("log_plus_one", torch.log1p),
    "softplus": ("log_plus_one", torch.nn.functional.softplus),
    "mish": ("log_plus_one", torch.nn.functional.mish),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_operators_of_pytorch_have_them(name: str, dtype: torch.dtype) -> None:
    operation, function = CALLS[name]
    x = (torch.randn(40, 50, generator=torch.Generator().manual_seed(0)).abs() * 5).to(dtype)

    def negated(x: torch.Tensor) -> torch.Tensor:
        return -function(x)

    text = emitted(negated, x)
    assert "stablehlo.negate " in text
    assert f"stablehlo.{operation} " not in text
    found = torch.compile(negated, backend="pjrt")(x)
    torch.testing.assert_close(found, negated(x))


@pytest.mark.parametrize("x", [torch.ones(LEAST - 1), torch.ones(LEAST, dtype=torch.float64)])
def test_few_numbers_and_float64_are_left_to_the_compiler(x: torch.Tensor) -> None:
    assert "stablehlo.sine " in emitted(lambda x: -torch.sin(x), x)


def test_gradients_agree_with_eager() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x) * torch.nn.functional.softplus(x) + torch.tan(x)).sum()

    sides = [torch.linspace(-1.4, 1.4, 3000).requires_grad_() for _ in range(2)]
    torch.compile(function, backend="pjrt")(sides[0]).backward()
    function(sides[1]).backward()
    torch.testing.assert_close(sides[0].grad, sides[1].grad)


@NAMES
def test_programs_that_others_wrote_have_them(name: str) -> None:
    written = program(FUNCTIONS[name][1], 1000)
    assert f"stablehlo.{name} " in written.text
    assert f"stablehlo.{name} " not in for_target(written, VectorFunctions()).text


@pytest.mark.parametrize("name", ["sine", "cosine", "tan"])
def test_they_take_less_processor_time(name: str, client: Client) -> None:
    x = client.put(np.linspace(0, 100, 100_000, dtype=np.float32))
    times = []
    for written in FUNCTIONS[name][:2]:
        executable = client.compile(program(written, 100_000))
        samples = []
        for _ in range(8):
            started = time.process_time()
            executable.execute([x])[0].block_until_ready()
            samples.append(time.process_time() - started)
        times.append(min(samples))
    assert times[0] < 0.6 * times[1]
