"""The chip: StableHLO's reference interpreter, which compiles by checking, and one kernel."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from pjrt_bridge import wire
from pjrt_bridge.abi.python_plugins import invalid, unimplemented
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Builder, Program, Value, bindings
from pjrt_bridge.stablehlo.interpret import custom_calls, interpreter


def gelu_tanh(b: Builder, x: Value) -> Value:
    """The kernel behind the custom call `mychip.gelu_tanh`: x/2 (1 + tanh(x (c + d x^2)))."""
    half, one, c, d = (b.full(x.shape, n, x.dtype) for n in (0.5, 1, 0.7978845608, 0.0356774081))
    inner = b.multiply(x, b.add(c, b.multiply(d, b.multiply(x, x))))
    return b.multiply(b.multiply(half, x), b.add(one, b.tanh(inner)))


KERNELS = {"mychip.gelu_tanh": gelu_tanh}
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
