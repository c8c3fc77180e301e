"""Operations that the reference interpreter does not know, compared with NumPy.

Also those that are about shapes known at run time: their operands are constants here, so that a
plugin without dynamic shapes can run them after constant folding; if it cannot, it has to say so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import require, same
from pjrt_bridge_conformance.numerics import (
    Oracle,
    Tolerance,
    build,
    check,
    numbers,
    run,
)
from pjrt_bridge_conformance.programs import ProgramGroup, main

SPECIAL = ProgramGroup("numerics")

F32, F64, U64, C64 = (dtypes.of(name) for name in ("float32", "float64", "uint64", "complex64"))


# -- linear algebra and transforms -----------------------------------------------------------------


@SPECIAL.each(["float32", "float64", "complex64"])
def cholesky(context: Context, name: str) -> None:
    """Cholesky factors times their adjoints give the matrices, from both triangles."""
    dtype = dtypes.of(name)
    root = numbers(dtype, 2, 4, 4) + 4 * np.eye(4, dtype=dtype.numpy)
    x = np.asarray(root @ np.conj(np.swapaxes(root, 1, 2)), dtype.numpy)

    def oracle(x: Array) -> list[Array]:
        lower = np.linalg.cholesky(x)
        return [lower, np.conj(np.swapaxes(lower, 1, 2))]

    def body(b: Builder, x: Value) -> list[Value]:
        # What the other triangle holds is the implementation's choice.
        keep = b.compare(b.iota(x.shape, 1, "int32"), b.iota(x.shape, 2, "int32"), "GE")
        zero = b.full(x.shape, 0, dtype)
        flipped = b.transpose(keep, (0, 2, 1))
        return [
            b.select(keep, b.cholesky(x, True), zero),
            b.select(flipped, b.cholesky(x, False), zero),
        ]

    bound = Tolerance(absolute=1e-9 if name == "float64" else 1e-3)
    check(context.client, build(body, [x]), [x], bound, oracle)


_TRANSFORMS: dict[str, tuple[Array, Oracle]] = {
    "FFT": (numbers(C64, 3, 16), lambda x: np.fft.fft(x).astype(np.complex64)),
    "IFFT": (numbers(C64, 3, 15), lambda x: np.fft.ifft(x).astype(np.complex64)),
    "RFFT": (numbers(F32, 3, 16), lambda x: np.fft.rfft(x).astype(np.complex64)),
}


@SPECIAL.each(_TRANSFORMS)
def fft(context: Context, kind: Any) -> None:
    """Fourier transforms over the last dimension."""
    x, oracle = _TRANSFORMS[kind]
    program = build(lambda b, x: b.fft(x, kind, x.shape[-1:]), [x])
    check(context.client, program, [x], Tolerance(absolute=1e-3), oracle)


@SPECIAL.check
def fft_irfft(context: Context) -> None:
    """The inverse of a real Fourier transform gives the real numbers back."""
    x = numbers(F32, 3, 16)
    program = build(lambda b, x: b.fft(b.fft(x, "RFFT", [16]), "IRFFT", [16]), [x])
    check(context.client, program, [x], Tolerance(absolute=1e-4), lambda x: x)


@SPECIAL.check
def fft_3d(context: Context) -> None:
    """Fourier transforms over three dimensions."""
    x = numbers(dtypes.of("complex128"), 3, 4, 6)
    program = build(lambda b, x: b.fft(x, "FFT", x.shape), [x])
    check(context.client, program, [x], Tolerance(absolute=1e-3), lambda x: np.fft.fftn(x))


@SPECIAL.check
def triangular_solve_batches(context: Context) -> None:
    """Triangular systems are solved in batches."""
    a = numbers(F64, 3, 4, 4) + 6 * np.eye(4)
    x = numbers(F64, 3, 4, 2)

    def body(b: Builder, a: Value, x: Value) -> Value:
        return b.triangular_solve(a, x, left_side=True, lower=True, unit_diagonal=False)

    program = build(body, [a, x])
    oracle = lambda a, x: np.linalg.solve(np.tril(a), x)  # noqa: E731
    check(context.client, program, [a, x], Tolerance(absolute=1e-9), oracle)


# -- batch normalization ---------------------------------------------------------------------------

_X, _SCALE, _OFFSET = numbers(F32, 6, 3), numbers(F32, 3, low=1), numbers(F32, 3, seed=1)
_MEAN, _VARIANCE = numbers(F32, 3, seed=2), numbers(F32, 3, low=1, seed=3)
_HOW = "{epsilon = 0.01 : f32, feature_index = 1 : i64}"
_NEAR = Tolerance(ulps=64, absolute=1e-4)


def _normalized(x: Array, scale: Array, offset: Array, mean: Array, variance: Array) -> Array:
    return ((x - mean) / np.sqrt(variance + np.float32(0.01)) * scale + offset).astype(np.float32)


SPECIAL.text(
    "batch_norm_inference",
    "Batches are normalized with given means and variances.",
    main(
        "%x: tensor<6x3xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>, %m: tensor<3xf32>, "
        "%v: tensor<3xf32>",
        "tensor<6x3xf32>",
        f'%0 = "stablehlo.batch_norm_inference"(%x, %s, %o, %m, %v) {_HOW} : (tensor<6x3xf32>, '
        "tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<6x3xf32> "
        "return %0 : tensor<6x3xf32>",
    ),
    (_X, _SCALE, _OFFSET, _MEAN, _VARIANCE),
    _normalized,
    _NEAR,
)
SPECIAL.text(
    "batch_norm_training",
    "Batches are normalized with their own means and variances, which come along.",
    main(
        "%x: tensor<6x3xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>",
        "(tensor<6x3xf32>, tensor<3xf32>, tensor<3xf32>)",
        f'%0:3 = "stablehlo.batch_norm_training"(%x, %s, %o) {_HOW} : (tensor<6x3xf32>, '
        "tensor<3xf32>, tensor<3xf32>) -> (tensor<6x3xf32>, tensor<3xf32>, tensor<3xf32>) "
        "return %0#0, %0#1, %0#2 : tensor<6x3xf32>, tensor<3xf32>, tensor<3xf32>",
    ),
    (_X, _SCALE, _OFFSET),
    lambda x, s, o: [_normalized(x, s, o, x.mean(0), x.var(0)), x.mean(0), x.var(0)],
    _NEAR,
)


def _norm_grad(x: Array, scale: Array, mean: Array, variance: Array, grad: Array) -> list[Array]:
    root = np.sqrt(variance.astype(np.float64) + 0.01)
    centered = (x - mean).astype(np.float64)
    per_scale = (grad * centered / root).sum(0)
    per_offset = grad.sum(0)
    spread = per_offset + centered / root * per_scale / 1.0
    operand = scale / root / len(x) * (len(x) * grad - spread)
    return [value.astype(np.float32) for value in (operand, per_scale, per_offset)]


SPECIAL.text(
    "batch_norm_grad",
    "Gradients of a normalized batch.",
    main(
        "%x: tensor<6x3xf32>, %s: tensor<3xf32>, %m: tensor<3xf32>, %v: tensor<3xf32>, "
        "%g: tensor<6x3xf32>",
        "(tensor<6x3xf32>, tensor<3xf32>, tensor<3xf32>)",
        f'%0:3 = "stablehlo.batch_norm_grad"(%x, %s, %m, %v, %g) {_HOW} : (tensor<6x3xf32>, '
        "tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<6x3xf32>) -> (tensor<6x3xf32>, "
        "tensor<3xf32>, tensor<3xf32>) "
        "return %0#0, %0#1, %0#2 : tensor<6x3xf32>, tensor<3xf32>, tensor<3xf32>",
    ),
    (_X, _SCALE, _MEAN, _VARIANCE, numbers(F32, 6, 3, seed=4)),
    _norm_grad,
    Tolerance(ulps=64, absolute=1e-3),
)

# -- random bits -----------------------------------------------------------------------------------


@SPECIAL.each(["DEFAULT", "THREE_FRY", "PHILOX"])
def rng_bit_generator(context: Context, algorithm: Any) -> None:
    """Random bits follow from the state: the same twice, others for the next state."""
    state = np.array([1, 2], np.uint64)
    program = build(lambda b, s: b.rng_bit_generator(s, (4096,), "uint32", algorithm), [state])
    after, bits = run(context.client, program, [state])
    again = run(context.client, program, [state])
    same(bits, again[1], "bits of one state")
    require(not np.array_equal(after, state), "the next state is the same")
    (_, others) = run(context.client, program, [after])
    require(not np.array_equal(bits, others), "another state gives the same bits")
    share = np.unpackbits(bits.view(np.uint8)).mean()
    require(abs(share - 0.5) < 0.01, f"{share:.1%} of the bits are ones")


_RANGES = {"uniform.float32": (-2.0, 5.0), "uniform.int32": (-3, 9), "normal.float32": (1.0, 2.0)}


@SPECIAL.each(_RANGES)
def rng(context: Context, case: str) -> None:
    """Random numbers have the distribution that was asked for."""
    kind, name = case.split(".")
    dtype = dtypes.of(name)
    first, second = _RANGES[case]
    element = dtype.stablehlo
    program = main(
        f"%a: tensor<{element}>, %b: tensor<{element}>",
        f"tensor<4096x{element}>",
        "%s = stablehlo.constant dense<4096> : tensor<1xi64> "
        f"%0 = stablehlo.rng %a, %b, %s, distribution = {kind.upper()} : "
        f"(tensor<{element}>, tensor<{element}>, tensor<1xi64>) -> tensor<4096x{element}> "
        f"return %0 : tensor<4096x{element}>",
    )
    arrays = [np.array(value, dtype.numpy) for value in (first, second)]
    (x,) = run(context.client, program, arrays)
    if kind == "normal":
        require(abs(x.mean() - first) < 0.2, f"the mean is {x.mean()}, expected {first}")
        require(abs(x.std() - second) < 0.2, f"the deviation is {x.std()}, expected {second}")
        return
    require(x.min() >= first and x.max() < second, f"numbers from {x.min()} to {x.max()}")
    middle = (first + second - (0 if dtype.is_float else 1)) / 2
    require(abs(x.mean() - middle) < 0.4, f"the mean is {x.mean()}, expected {middle}")


@SPECIAL.check
def negative_zero_and_nan(context: Context) -> None:
    """Signs of zeros survive sums and products, and NaN survives everything."""
    x = np.array([-0.0, 0.0, np.nan, np.inf], np.float32)

    def body(b: Builder, x: Value) -> list[Value]:
        one, zero = b.full((4,), 1, F32), b.full((4,), 0, F32)
        # Compilers take x + 0 for x, which loses the sign of -0 + 0; that is left out.
        return [b.multiply(x, one), b.subtract(x, x), b.multiply(x, zero)]

    check(context.client, build(body, [x]), [x], Tolerance(signed_zeros=True))


@SPECIAL.check
def no_fast_math(context: Context) -> None:
    """Sums are not reordered where that changes them, and x / x is not 1 for zero."""
    big = np.array([1e30, 1.0, 0.0], np.float32)

    def body(b: Builder, x: Value) -> list[Value]:
        one = b.full((3,), 1, F32)
        return [b.subtract(b.add(one, x), x), b.divide(x, x)]

    check(context.client, build(body, [big]), [big])
