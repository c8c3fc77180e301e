"""Comparing what a plugin computes with StableHLO's reference interpreter, or with NumPy.

StableHLO leaves the accuracy of some operations to the implementation; a `Tolerance` says how far a
result may be from the reference. Where the meaning of an operation decides every bit it is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Program, TensorType, Value
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge_conformance.outcomes import Fail

Body = Callable[..., "Value | Sequence[Value]"]
"""Writes a program: from a Builder and its parameters to the results."""

Oracle = Callable[..., "Array | Sequence[Array]"]
"""Computes the expected results with NumPy."""


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from the reference; either bound suffices.

    Attributes:
        ulps: units in the last place of the result's type; of complex results, of the larger part.
        absolute: of the value, where it comes out of cancellation.
        signed_zeros: -0 and 0 are different.
    """

    ulps: int = 0
    absolute: float = 0.0
    signed_zeros: bool = False


EXACT = Tolerance()

UNSIGNED_FLOAT = "float8_e8m0fnu"
"""The float without a sign and without a zero: a power of two."""


def build(body: Body, arrays: Sequence[Array], name: str = "main") -> Program:
    """The program of a body for parameters like the arrays."""
    types = [TensorType(array.shape, dtypes.from_numpy(array.dtype)) for array in arrays]
    builder = Builder(types, name=name)
    returned = body(builder, *builder.parameters)
    return builder.finish([returned] if isinstance(returned, Value) else list(returned))


def run(client: Client, program: Program | str, arrays: Sequence[Array]) -> list[Array]:
    """What the plugin computes."""
    with client.compile(program) as executable:
        return [result.to_numpy() for result in executable(*arrays)]


def check(
    client: Client,
    program: Program,
    arrays: Sequence[Array],
    tolerance: Tolerance = EXACT,
    oracle: Oracle | None = None,
) -> None:
    """Raise `Fail` unless the plugin computes what the reference does.

    Args:
        client: of the plugin.
        program: what to run.
        arrays: its arguments.
        tolerance: how far a result may be off.
        oracle: NumPy's version, for what the interpreter does not know.
    """
    found = run(client, program, arrays)
    if oracle is None:
        try:
            expected = evaluate(program, *arrays)
        except ProgramError as error:
            raise Fail(f"no reference: {error}") from error
    else:
        made = oracle(*arrays)
        expected = (made,) if isinstance(made, np.ndarray) else tuple(made)
    if len(found) != len(expected):
        raise Fail(f"found {len(found)} results, expected {len(expected)}")
    for index, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        compare(mine, theirs, tolerance, f"result {index}", arrays)


def compare(
    found: Array, expected: Array, tolerance: Tolerance, what: str, arrays: Sequence[Array] = ()
) -> None:
    """Raise `Fail` unless two arrays agree within a tolerance; any NaN is as good as another."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        raise Fail(
            f"{what}: found {found.dtype}{list(found.shape)}, "
            f"expected {expected.dtype}{list(expected.shape)}"
        )
    if np.issubdtype(found.dtype, np.complexfloating):
        wrong = _complex_wrong(found, expected, tolerance)
    elif dtypes.from_numpy(found.dtype).is_float:
        wrong = _float_wrong(found, expected, tolerance)
    else:
        wrong = found != expected
    if wrong.any():
        position = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        index = tuple(int(i) for i in position)
        given = [array[index] for array in arrays if array.shape == found.shape]
        inputs = f" of {', '.join(map(str, given))}" if given else ""
        raise Fail(
            f"{what}: {int(wrong.sum())} of {found.size} elements are wrong; at {list(index)}"
            f"{inputs} found {found[index]}, expected {expected[index]} (within {_text(tolerance)})"
        )


def _text(tolerance: Tolerance) -> str:
    bounds = [f"{tolerance.ulps} ulp"] if tolerance.ulps or not tolerance.absolute else []
    bounds += [f"{tolerance.absolute:g}"] if tolerance.absolute else []
    return " or ".join(bounds)


def _float_wrong(found: Array, expected: Array, tolerance: Tolerance) -> Array:
    nan = np.isnan(found) & np.isnan(expected)
    with np.errstate(all="ignore"):
        good = nan | (found == expected)
        if tolerance.signed_zeros:
            good &= nan | (np.signbit(found) == np.signbit(expected))
        finite = np.isfinite(found) & np.isfinite(expected)
        if tolerance.ulps:
            good |= finite & (_distance(found, expected) <= tolerance.ulps)
        if tolerance.absolute:
            wide = np.float64
            off = np.abs(found.astype(wide) - expected.astype(wide))
            good |= finite & (off <= tolerance.absolute)
    return np.asarray(~good)


def _distance(a: Array, b: Array) -> Array:
    """Steps between numbers of one type (one of their signs may be another)."""
    first, second = _ordinal(a), _ordinal(b)
    return np.maximum(first, second) - np.minimum(first, second)


def _ordinal(values: Array) -> Array:
    """Numbers in the order of the values, one apart where no value is between them."""
    width = values.dtype.itemsize
    bits = np.ascontiguousarray(values).view(f"u{width}").astype(np.uint64).reshape(values.shape)
    middle = np.uint64(1 << (8 * width - 1))
    magnitude = bits & (middle - np.uint64(1))
    return np.asarray(np.where(bits & middle, middle - magnitude, middle + magnitude))


def _complex_wrong(found: Array, expected: Array, tolerance: Tolerance) -> Array:
    part = Tolerance(signed_zeros=tolerance.signed_zeros)
    exact = _float_wrong(found.real, expected.real, part) | _float_wrong(
        found.imag, expected.imag, part
    )
    if not (tolerance.ulps or tolerance.absolute):
        return exact
    with np.errstate(all="ignore"):
        bound = tolerance.ulps * np.finfo(found.dtype).eps * np.abs(expected)
        near = np.abs(found - expected) <= np.maximum(bound, tolerance.absolute)
    return np.asarray(exact & ~near)


def numbers(dtype: DType, *shape: int, low: float = -4, high: float = 4, seed: int = 0) -> Array:
    """Random numbers of a type in a range; of integers whole ones, of bool both values."""
    random = np.random.default_rng([seed, dtype.code, *shape])
    if dtype.is_bool:
        return random.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        limits = ml_dtypes.iinfo(dtype.numpy)  # type: ignore[no-untyped-call]
        first, last = max(int(low), limits.min), min(int(high), limits.max)
        wide = np.uint64 if dtype.is_unsigned_integer else np.int64
        return random.integers(first, last, shape, wide, endpoint=True).astype(dtype.numpy)
    values: Any = random.uniform(low, high, shape)
    if dtype.name == UNSIGNED_FLOAT:
        values = np.abs(values) + 0.1
    if dtype.is_complex:
        values = values + 1j * random.uniform(low, high, shape)
    return np.asarray(values).astype(dtype.numpy)


def whole(dtype: DType, *shape: int, low: int = -4, high: int = 4, seed: int = 0) -> Array:
    """Random whole numbers of any type: their sums and products are exact in any order."""
    random = np.random.default_rng([seed, dtype.code, *shape])
    first = 0 if dtype.is_unsigned_integer or dtype.is_bool else low
    values: Any = random.integers(first, 1 if dtype.is_bool else high, shape, endpoint=True)
    if dtype.name == UNSIGNED_FLOAT:
        values = np.exp2(values)
    if dtype.is_complex:
        values = values + 1j * random.integers(low, high, shape, endpoint=True)
    return np.asarray(values).astype(dtype.numpy)
