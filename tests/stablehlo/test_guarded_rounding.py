"""One program gives the results of two, in which a compiler can join no operations on floats."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from pjrt_bridge import Client
from pjrt_bridge.stablehlo.rewriting import bits_of

NUMBERS = {
    "f32": np.float32(
        [0, -0.0, 1, 2, 41, 100, -100, 1e20, 1e-20, 1e30, 3e38, np.inf, -np.inf, np.nan]
    ),
    "f16": np.float16([0, -0.0, 1, 2, 41, 20, -20, 300, 0.01, 60000, np.inf, -np.inf, np.nan]),
}
LARGE = {"f32": 3e38, "f16": 60000.0}
PROGRAMS = {
    "product of products": ("multiply x c", "multiply a c"),
    "product of a quotient": ("divide x c", "multiply a c"),
    "product of an inverse": ("divide c x", "multiply c a"),
    "quotient of a product": ("multiply x c", "divide a c"),
    "quotient of quotients": ("divide x c", "divide a c"),
    "quotient by a quotient": ("divide x c", "divide c a"),
    "sum of sums": ("add x c", "add c a"),
    "difference of sums": ("add x c", "subtract a c"),
    "difference of differences": ("subtract c x", "subtract a c"),
    "quotient of a variable's": ("divide x y", "divide a y"),
    "quotient by a variable's": ("divide x y", "divide x a"),
    "quotient of two": ("divide x y", "divide y x", "divide a b"),
    "root of a square": ("multiply x x", "sqrt a"),
    "inverse root of a square": ("multiply x x", "rsqrt a"),
    "logarithm of exp": ("exponential x", "log a"),
    "logarithm of a power": ("power x y", "log a"),
    "power of exp": ("exponential x", "power a h"),
    "power of a power": ("power x t", "power a h"),
    "root of a power": ("power x t", "sqrt a"),
    "quotient of a power": ("power x t", "divide x a"),
    "sum of halves": ("multiply x h", "multiply y h", "add a b"),
    "inverse root of an inverse": ("multiply x x", "divide o a", "rsqrt b"),
    "root of an inverse": ("multiply x x", "divide o a", "sqrt b"),
    "sum with zero": ("add x z", "divide o a"),
    "product of exps": ("exponential x", "exponential y", "multiply a b"),
    "quotient of exps": ("exponential x", "exponential y", "divide a b"),
}
"""For each program its operations, whose results are a, b, c."""
FUNCTIONS = {
    "exponential": np.exp,
    "rsqrt": lambda x: np.divide(x.dtype.type(1), np.sqrt(x)),
}


def _constants(element: str) -> dict[str, float]:
    return {"c": LARGE[element], "h": 0.5, "o": 1.0, "t": 2.0, "z": 0.0}


def _step_by_step(lines: Sequence[str], values: dict[str, np.ndarray]) -> np.ndarray:
    """The last operation's result; denormal numbers count as 0."""
    with np.errstate(all="ignore"):
        for name, line in zip("abc", lines, strict=False):
            operator, *operands = line.split()
            function = FUNCTIONS.get(operator) or getattr(np, operator)
            found = function(*(values[operand] for operand in operands))
            values[name] = _without_denormals(found)
    return values["abc"[len(lines) - 1]]


def _without_denormals(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.float16:
        # Half precision is computed in float32.
        return array
    is_small = np.abs(array) < np.finfo(array.dtype).tiny
    return np.where(is_small, np.copysign(array.dtype.type(0), array), array)


def _together(
    client: Client, lines: Sequence[str], element: str, x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """The last operation's result, of one program."""
    constants = _constants(element)
    text = [f"%{name} = stablehlo.constant dense<{n:.9e}> : T" for name, n in constants.items()]
    for name, line in zip(("%a", "%b", "%r"), lines, strict=False):
        operator, *operands = line.split()
        name = "%r" if line == lines[-1] else name
        text.append(f"{name} = stablehlo.{operator} %{', %'.join(operands)} : T")
    body = "\n".join(text)
    body = f"func.func @main(%x: T, %y: T) -> T {{ {body}\nreturn %r : T }}"
    (found,) = client.compile(re.sub(r"\bT\b", f"tensor<{x.size}x{element}>", body))(x, y)
    return found.to_numpy()


@pytest.mark.parametrize("lines", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("element", NUMBERS)
def test_operations_are_not_joined(client: Client, element: str, lines: tuple[str, ...]) -> None:
    x, y = (side.ravel() for side in np.meshgrid(NUMBERS[element], NUMBERS[element]))
    known = {name: np.full_like(x, number) for name, number in _constants(element).items()}
    expected = _step_by_step(lines, {"x": x, "y": y, **known})
    found = _without_denormals(_together(client, lines, element, x, y))
    # Which way a number near the smallest is rounded is no matter here.
    atol, rtol = 2 * np.finfo(x.dtype).tiny, 8 * np.finfo(x.dtype).eps
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("operator", ["multiply", "divide"])
def test_products_of_one_term_are_not_joined(client: Client, operator: str) -> None:
    x = NUMBERS["f32"]
    text = f"""
      func.func @main(%x: tensor<{x.size}xf32>) -> tensor<{x.size}x2xf32> {{
        %c = stablehlo.constant dense<3.0e38> : tensor<{x.size}xf32>
        %d = stablehlo.constant dense<1.0e-30> : tensor<1x2xf32>
        %e = stablehlo.constant dense<3.0e38> : tensor<{x.size}x2xf32>
        %a = stablehlo.multiply %x, %c : tensor<{x.size}xf32>
        %b = stablehlo.reshape %a : (tensor<{x.size}xf32>) -> tensor<{x.size}x1xf32>
        %p = stablehlo.dot_general %b, %d, contracting_dims = [1] x [0]
          : (tensor<{x.size}x1xf32>, tensor<1x2xf32>) -> tensor<{x.size}x2xf32>
        %r = stablehlo.{operator} %p, %e : tensor<{x.size}x2xf32>
        return %r : tensor<{x.size}x2xf32> }}"""
    (found,) = client.compile(text)(x)
    with np.errstate(all="ignore"):
        product = x * np.float32(3e38) * np.float32(1e-30)
        expected = getattr(np, operator)(product, np.float32(3e38))
    expected = np.stack([_without_denormals(expected)] * 2, axis=1)
    np.testing.assert_allclose(_without_denormals(found.to_numpy()), expected, rtol=1e-6)


@pytest.mark.parametrize("divisor", [3.0, 41.0, 0.1, 2.0**126, 2.0**127, 3e38, 1e-30, -7.0])
def test_a_quotient_by_a_constant_is_rounded_once(client: Client, divisor: float) -> None:
    x = np.arange(1, 400, dtype=np.float32)
    if divisor > 1e30:
        x *= np.float32(1e35)
    text = f"""
      func.func @main(%x: tensor<399xf32>) -> tensor<399xf32> {{
        %c = stablehlo.constant dense<{divisor:.9e}> : tensor<399xf32>
        %r = stablehlo.divide %x, %c : tensor<399xf32>
        return %r : tensor<399xf32> }}"""
    (found,) = client.compile(text)(x)
    np.testing.assert_array_equal(found.to_numpy(), x / np.float32(divisor))


COMPUTED = {
    "a difference": ("3.0", "-3.0", "%d = stablehlo.subtract %b, %c", 6.0),
    "a product": ("3.5", "2.0", "%d = stablehlo.multiply %b, %c", 7.0),
    "a root": ("9.0", "0.0", "%d = stablehlo.sqrt %b", 3.0),
    "a choice of the compiler": ("5.0", "1.0", "%d = stablehlo.maximum %b, %c", 5.0),
}


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("shape", ["", "399x"], ids=["one number", "an array"])
def test_a_quotient_by_what_a_compiler_makes_a_constant_of(
    client: Client, name: str, shape: str
) -> None:
    first, second, step, divisor = COMPUTED[name]
    x = np.arange(1, 400, dtype=np.float32)
    dims = "[0]" if shape else "[]"
    text = f"""
      func.func @main(%x: tensor<399xf32>) -> tensor<399xf32> {{
        %b = stablehlo.constant dense<{first}> : tensor<{shape}f32>
        %c = stablehlo.constant dense<{second}> : tensor<{shape}f32>
        {step} : tensor<{shape}f32>
        %e = stablehlo.broadcast_in_dim %d, dims = {dims} : (tensor<{shape}f32>) -> tensor<399xf32>
        %r = stablehlo.divide %x, %e : tensor<399xf32>
        return %r : tensor<399xf32> }}"""
    (found,) = client.compile(text)(x)
    np.testing.assert_array_equal(found.to_numpy(), x / np.float32(divisor))


@pytest.mark.parametrize("divisor", [41, 47, 55, 61, 83])
def test_a_quotient_of_what_a_compiler_makes_a_constant_of(client: Client, divisor: int) -> None:
    text = f"""
      func.func @main() -> tensor<399xf32> {{
        %t = stablehlo.constant dense<2.0> : tensor<f32>
        %x = stablehlo.broadcast_in_dim %t, dims = [] : (tensor<f32>) -> tensor<399xf32>
        %c = stablehlo.constant dense<{divisor}.0> : tensor<399xf32>
        %p = stablehlo.multiply %x, %c : tensor<399xf32>
        %q = stablehlo.divide %p, %c : tensor<399xf32>
        %r = stablehlo.floor %q : tensor<399xf32>
        return %r : tensor<399xf32> }}"""
    (found,) = client.compile(text)()
    np.testing.assert_array_equal(found.to_numpy(), np.float32(2))


@pytest.mark.parametrize(("element", "bits"), [("f32", 32), ("bf16", 16), ("ui8", 8), ("i64", 64)])
def test_bits_of_types(element: str, bits: int) -> None:
    assert bits_of(element) == bits
