"""Functions in vectors: their numbers for every size of argument, where they are used."""

from __future__ import annotations

import math
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
from pjrt_bridge.stablehlo import Builder, Program, TensorType
from pjrt_bridge.stablehlo.patterns import for_target
from pjrt_bridge_cpu import expressions
from pjrt_bridge_cpu.functions import LEAST, VectorFunctions
from pjrt_bridge_cpu.functions.angles import cosine, sine, tangent
from pjrt_bridge_cpu.functions.arcs import angle, arc_cosine, arc_sine, arc_tangent
from pjrt_bridge_cpu.functions.powers import log1p, power
from pjrt_bridge_cpu.functions.remainders import remainder
from tests.cpu.helpers import drawn_floats, emitted, last_places
from tests.extent import examples

FLOAT32 = dtypes.of("float32")
Written = Callable[..., Any]
FUNCTIONS: dict[str, tuple[Written, Written, Callable[[Any], Any], float]] = {
    "stablehlo.sine": (sine, Builder.sin, np.sin, 3),
    "stablehlo.cosine": (cosine, Builder.cos, np.cos, 3),
    "stablehlo.tan": (tangent, Builder.tan, np.tan, 5),
    "stablehlo.log_plus_one": (log1p, Builder.log1p, np.log1p, 3),
    "chlo.atan": (arc_tangent, Builder.atan, np.arctan, 2),
    "chlo.asin": (arc_sine, Builder.asin, np.arcsin, 3),
    "chlo.acos": (arc_cosine, Builder.acos, np.arccos, 2),
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


@NAMES
@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_numbers_are_right_to_some_last_places(name: str, seed: int) -> None:
    written, _, exact, error = FUNCTIONS[name]
    x = drawn_floats(seed)
    if name == "stablehlo.log_plus_one":
        x = np.where(x > -1, x, -x)
    if name in ("chlo.asin", "chlo.acos"):
        x = np.where(np.abs(x) > 1, 1 / x, x)
    found = computed(pjrt_bridge.client("cpu"), written, x)
    assert last_places(found, exact(x.astype(np.float64))).max() <= error


PAIRS: dict[str, tuple[Written, Written, Callable[[Any, Any], Any], float]] = {
    "stablehlo.atan2": (angle, Builder.atan2, np.arctan2, 2),
    "stablehlo.power": (power, Builder.power, np.power, 1),
    "stablehlo.remainder": (remainder, Builder.remainder, np.fmod, 0),
}
OF_TWO = pytest.mark.parametrize("name", PAIRS)


def normal_numbers(x: Any) -> Any:
    """Numbers that the processor takes for zero are zero; others are rounded to float32."""
    with np.errstate(over="ignore"):
        zeros = np.copysign(0.0, x)
        return np.where(np.abs(x) < np.finfo(np.float32).tiny, zeros, x).astype(np.float32)


def computed_of_two(name: str, x: Any, y: Any) -> tuple[Any, Any]:
    """What a program computes, and the exact numbers in float64."""
    written, _, exact, _ = PAIRS[name]
    builder = Builder([TensorType(x.shape, FLOAT32)] * 2)
    made = builder.finish([written(builder, *builder.parameters)])
    (found,) = pjrt_bridge.client("cpu").compile(made)(x, y)
    with np.errstate(all="ignore"):
        return np.asarray(found), exact(x.astype(np.float64), y.astype(np.float64))


@OF_TWO
@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_functions_of_two_numbers_are_right(name: str, seed: int) -> None:
    """Of any two, of two that models have, and of whole ones."""
    x, y = drawn_floats(seed), np.random.default_rng(seed + 1).permutation(drawn_floats(seed + 1))
    whole = np.random.default_rng(seed).integers(-30, 30, (2, x.size)).astype(np.float32)
    for left, right in ((x, y), (np.abs(x), y), (x[4096:], y[:4096] * 0 + 1.25), whole):
        found, exact = computed_of_two(name, left, right)
        expected = normal_numbers(exact)
        regular = np.isfinite(expected) & np.isfinite(found)
        np.testing.assert_array_equal(found[~regular], expected[~regular])
        tiny = np.abs(exact) <= np.finfo(np.float32).tiny
        wrong = last_places(found, exact)[regular & ~tiny]
        assert wrong.max(initial=0) <= PAIRS[name][3]


@OF_TWO
def test_two_numbers_that_are_special(name: str) -> None:
    numbers = [0.0, 1.0, 2.0, 0.5, 3.0, np.inf, 1.5, 2.0**24, 2.0**24 - 1, 1e-30, 3e38]
    special = np.array([*numbers, *(-number for number in numbers), np.nan], np.float32)
    x, y = (side.ravel() for side in np.meshgrid(special, special))
    found, exact = computed_of_two(name, x, y)
    expected = normal_numbers(exact)
    np.testing.assert_allclose(found, expected, rtol=2.5e-7)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(expected)[known])


def test_powers_of_small_whole_numbers_are_exact() -> None:
    x, y = np.meshgrid(np.arange(1, 17, dtype=np.float32), np.arange(0, 17, dtype=np.float32))
    found, exact = computed_of_two("stablehlo.power", x, y)
    small = exact <= 2**24
    np.testing.assert_array_equal(found[small], exact[small])


@pytest.mark.parametrize("exponent", [0.5, 2.0, -1.0])
def test_powers_that_the_compiler_has_a_product_for_are_left(exponent: float) -> None:
    builder = Builder([TensorType((1000,), FLOAT32)], functions=VectorFunctions.functions)
    (x,) = builder.parameters
    text = builder.finish([builder.power(x, builder.full(x.shape, exponent, FLOAT32))]).text
    assert "stablehlo.power " in text


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
        written, _, exact, error = FUNCTIONS[f"stablehlo.{name}"]
        found = computed(pjrt_bridge.client("cpu"), written, x)
        assert last_places(found, exact(x.astype(np.float64))).max() <= error


CALLS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "sine": ("sine", torch.sin),
    "cosine": ("cosine", torch.cos),
    "tan": ("tan", torch.tan),
    "log1p": ("log_plus_one", torch.log1p),
    "softplus": ("log_plus_one", torch.nn.functional.softplus),
    "mish": ("log_plus_one", torch.nn.functional.mish),
    "atan": ("atan2", torch.atan),
    "asin": ("atan2", lambda x: torch.asin(x / 100)),
    "acos": ("atan2", lambda x: torch.acos(x / 100)),
    "atanh": ("log_plus_one", lambda x: torch.atanh(x / 100)),
    "erfinv": ("log_plus_one", lambda x: torch.erfinv(x / 100)),
    "atan2": ("atan2", lambda x: torch.atan2(x, x.flip(0))),
    "exp2": ("power", torch.exp2),
    "pow": ("power", lambda x: x**2.5),
    "fmod": ("remainder", lambda x: torch.fmod(x, 1.25)),
    "remainder": ("remainder", lambda x: torch.remainder(x, x.flip(0))),
    "floor_divide": ("remainder", lambda x: torch.floor_divide(x, 1.25)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_operators_of_pytorch_have_them(name: str, dtype: torch.dtype) -> None:
    operation, function = CALLS[name]
    x = (torch.randn(40, 50, generator=torch.Generator().manual_seed(0)).abs() * 5).to(dtype)

    def negated(x: torch.Tensor) -> torch.Tensor:
        return -function(x)

    text = emitted(negated, x)
    assert "stablehlo.negate " in text or expressions.TARGET in text
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
    name = name.replace("chlo.", "stablehlo.atan2 ") if "chlo" in name else name
    name = name.split()[0]
    assert f"{name} " in written.text
    assert f"{name} " not in for_target(written, VectorFunctions()).text


@OF_TWO
def test_programs_that_others_wrote_have_them_for_two_numbers(name: str) -> None:
    builder = Builder([TensorType((1000,), FLOAT32)] * 2)
    written = builder.finish([PAIRS[name][1](builder, *builder.parameters)])
    assert f"{name} " in written.text
    assert f"{name} " not in for_target(written, VectorFunctions()).text
