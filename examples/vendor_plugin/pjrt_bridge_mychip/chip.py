"""The chip: StableHLO's reference interpreter, which compiles by checking, and its kernels."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from pjrt_bridge import dtypes, wire
from pjrt_bridge.abi.python_plugins import invalid, unimplemented
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Builder, Program, Value, bindings
from pjrt_bridge.stablehlo.interpret import custom_calls, interpreter


def gelu_tanh(b: Builder, x: Value) -> Value:
    """The kernel behind the custom call `mychip.gelu_tanh`: x/2 (1 + tanh(x (c + d x^2)))."""
    half, one, c, d = (b.full(x.shape, n, x.dtype) for n in (0.5, 1, 0.7978845608, 0.0356774081))
    inner = b.multiply(x, b.add(c, b.multiply(d, b.multiply(x, x))))
    return b.multiply(b.multiply(half, x), b.add(one, b.tanh(inner)))


def attention(b: Builder, query: Value, key: Value, value: Value) -> tuple[Value, Value]:
    """The kernel behind `mychip.attention`: softmax(q k^T) v, and the rows' logsumexp."""
    return _attended(b, _products(b, query, key, 3, 3), value)


def causal_attention(b: Builder, query: Value, key: Value, value: Value) -> tuple[Value, Value]:
    """The same, where a query sees the keys up to its own position."""
    scores = _products(b, query, key, 3, 3)
    row, column = (b.iota(scores.shape, dim, dtypes.of("int32")) for dim in (2, 3))
    never = b.full(scores.shape, float("-inf"), scores.dtype)
    return _attended(b, b.select(b.compare(column, row, "LE"), scores, never), value)


def _attended(b: Builder, scores: Value, value: Value) -> tuple[Value, Value]:
    def spread(x: Value, shape: tuple[int, ...]) -> Value:
        return b.broadcast_in_dim(x, shape, (0, 1, 2))

    largest = b.reduce_max(scores, (3,))
    weights = b.exp(b.subtract(scores, spread(largest, scores.shape)))
    total = b.reduce_sum(weights, (3,))
    summed = _products(b, weights, value, 3, 2)
    return b.divide(summed, spread(total, summed.shape)), b.add(largest, b.log(total))


def _products(b: Builder, x: Value, y: Value, x_dim: int, y_dim: int) -> Value:
    batch = (0, 1)
    return b.dot_general(
        x, y, lhs_batch=batch, rhs_batch=batch, lhs_contract=(x_dim,), rhs_contract=(y_dim,)
    )


KERNELS: dict[str, custom_calls.CallBody] = {
    "mychip.attention": attention,
    "mychip.causal_attention": causal_attention,
    "mychip.gelu_tanh": gelu_tanh,
}
"""By the target of the custom calls that lowerings write."""


def stablehlo_versions() -> dict[str, tuple[int, ...]]:
    """What the compiler reads, as attributes of the plugin."""
    return {
        "stablehlo_minimum_version": bindings.parse_version(bindings.minimum_version()),
        "stablehlo_current_version": bindings.parse_version(bindings.current_version()),
    }


def compile_program(code: bytes, options: bytes) -> Program:
    """Read a program, and check that the chip can run it.

    Args:
        code: StableHLO, as a portable artifact, bytecode or text.
        options: a CompileOptionsProto.

    Raises:
        Status: INVALID_ARGUMENT for what is no program and for options that the chip cannot obey,
            UNIMPLEMENTED for an operation that it does not have; users read its name.
    """
    _check(options)
    try:
        program = custom_calls.expand(Program.parse(code), KERNELS)
        _ = program.signature
    except ProgramError as error:
        raise invalid(str(error)) from None
    try:
        interpreter.check(program)
    except ProgramError as error:
        raise unimplemented(str(error)) from None
    return program


def _check(options: bytes) -> None:
    devices: dict[int, int | bytes] = {4: 0, 5: 0}  # num_replicas, num_partitions
    for number, value in wire.fields(options):
        if number == 3 and isinstance(value, bytes):  # executable_build_options
            devices |= {key: item for key, item in wire.fields(value) if key in devices}
        if number == 7 and isinstance(value, bytes):  # env_option_overrides
            flag = dict(wire.fields(value))[1]
            if flag != b"mychip_fast_math":
                raise invalid(f"compile_options: unknown compiler flag {flag!r}")
    if devices != {4: 1, 5: 1}:
        raise invalid(f"compile_options: {devices[4]!r} replicas of {devices[5]!r} partitions")


def run(program: Program, *arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """The results of a program."""
    return interpreter.evaluate(program, *arrays)
