"""Wrong programs, options and arguments: a clean error with a text, and a client that works on.

What the bridge's own guards would stop is sent past them, as another framework might.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import int64s, pointers
from pjrt_bridge.errors import ErrorCode, PjrtError, SignatureMismatch
from pjrt_bridge.runtime import Buffer, Client, CompileOptions
from pjrt_bridge.stablehlo import Program, bindings
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import ADD, equal, refused, same, works
from pjrt_bridge_conformance.outcomes import Fail, Unsupported

ERRORS = Group("errors")

_X = np.arange(64, dtype=np.float32)
_OPTIONS = CompileOptions().serialize()


def _main(operation: str) -> str:
    head = "module { func.func @main(%a: tensor<f32>) -> tensor<f32> { "
    return f"{head}{operation} return %0 : tensor<f32> }} }}"


_PROGRAMS: dict[str, str] = {
    "empty": "",
    "text_that_is_none": "hello, this is no program",
    "zeros": "\0" * 64,
    "no_main": "module { func.func @other(%a: tensor<f32>) -> tensor<f32> "
    "{ return %a : tensor<f32> } }",
    "unknown_operation": _main("%0 = stablehlo.nonsense : tensor<f32>"),
    "unknown_dialect": _main('%0 = "other.thing"() : () -> tensor<f32>'),
    "wrong_types": _main("%0 = stablehlo.add %a, %a : tensor<3xf32>"),
    "cut_off": "module { func.func @main(",
    "unbounded": "module { func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> "
    "{ return %a : tensor<?xf32> } }",
}


@ERRORS.each(_PROGRAMS)
def program(context: Context, name: str) -> None:
    """What is no program that can be compiled is refused."""
    client, code = context.client, _PROGRAMS[name].encode()
    refused(lambda: raw.compile_bytes(client, code, _OPTIONS), f"the program {name}")
    works(client, f"the program {name}")


def _artifact(client: Client) -> bytes:
    return Program.parse(ADD).serialize_for(client.plugin.stablehlo_version)


@ERRORS.each([4, 20, 60, 200])
def truncated_artifact(context: Context, size: int) -> None:
    """A portable artifact of which only some bytes came is refused."""
    client = context.client
    code = _artifact(client)[:size]
    refused(lambda: raw.compile_bytes(client, code, _OPTIONS), f"{size} bytes of an artifact")
    works(client, "a truncated artifact")


@ERRORS.check
def newer_artifact(context: Context) -> None:
    """A portable artifact of a newer StableHLO version is refused, or means what it says."""
    client = context.client
    reads, ours = client.plugin.stablehlo_version, bindings.current_version()
    if reads is None or bindings.parse_version(ours) <= bindings.parse_version(reads):
        raise Unsupported(f"the plugin reads {reads}, this bridge writes no more than {ours}")
    code = Program.parse(ADD).portable_artifact(ours)
    try:
        loaded = raw.compile_bytes(client, code, _OPTIONS)
    except PjrtError:
        works(client, "an artifact of a newer version")
        return
    found = _execute(client, loaded, [client.put(_X)] * 2)
    client.api.call("LoadedExecutable_Destroy", executable=loaded)
    same(found, _X + _X, f"a sum in StableHLO {ours}")


@ERRORS.check
def unknown_format(context: Context) -> None:
    """A program in an unknown format is refused."""
    client = context.client
    code = _artifact(client)
    refused(lambda: raw.compile_bytes(client, code, _OPTIONS, b"cobol"), "the format 'cobol'")
    works(client, "an unknown format")


@ERRORS.check
def garbled_options(context: Context) -> None:
    """Compile options that are no message are refused."""
    client = context.client
    code = _artifact(client)
    refused(lambda: raw.compile_bytes(client, code, b"\xff" * 9), "options that are no message")
    works(client, "garbled options")


@ERRORS.check
def unknown_custom_call(context: Context) -> None:
    """A custom call that is not registered is an error that names it, at the latest when run."""
    client = context.client
    text = """module { func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.custom_call @nobody_knows_me(%a) {api_version = 4 : i32, backend_config = {}}
        : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32> } }"""

    def run() -> Array:
        with client.compile(text) as executable:
            (result,) = executable(np.zeros(4, np.float32))
            return result.to_numpy()

    error = refused(run, "a custom call that nobody registered")
    if "nobody_knows_me" not in error.message:
        raise Fail(f"the error does not name the call: {error.message}")
    works(client, "an unknown custom call")


def _execute(client: Client, loaded: int, arguments: Sequence[Buffer]) -> Array:
    """Run `ADD`, a PJRT_LoadedExecutable, without the bridge's checks."""
    column = pointers([buffer.handle.pointer for buffer in arguments])
    lists = pointers([ctypes.addressof(column)])
    row = pointers([None])
    results = pointers([ctypes.addressof(row)])
    client.api.call(
        "LoadedExecutable_Execute",
        executable=loaded,
        options=STRUCTS["PJRT_ExecuteOptions"].new(),
        argument_lists=ctypes.addressof(lists),
        num_devices=1,
        num_args=len(arguments),
        output_lists=ctypes.addressof(results),
    )
    with raw.buffer(client, row[0], 64) as result:
        return result.to_numpy()


def _refused(client: Client, arguments: Sequence[Buffer], what: str) -> None:
    with raw.compiled(client, ADD) as (loaded, _):
        refused(lambda: _execute(client, loaded, arguments), what)
    works(client, what)


_ARGUMENTS: dict[str, Callable[[Client], list[Buffer]]] = {
    "too_few": lambda client: [client.put(_X)],
    "too_many": lambda client: [client.put(_X)] * 3,
    "too_small": lambda client: [client.put(_X), client.put(_X[:32].copy())],
    "too_large": lambda client: [client.put(_X), client.put(np.zeros(128, np.float32))],
    "wider_type": lambda client: [client.put(_X), client.put(_X.astype(np.float64))],
}


@ERRORS.each(_ARGUMENTS)
def arguments(context: Context, name: str) -> None:
    """Arguments of another number or size than the program's are refused."""
    client = context.client
    _refused(client, _ARGUMENTS[name](client), f"arguments: {name}")


@ERRORS.check
def argument_elsewhere(context: Context) -> None:
    """An argument that lives on another device is refused."""
    client = context.pair
    _refused(client, [client.put(_X, client.devices[1])] * 2, "arguments on another device")


_SAME_SIZE: dict[str, Array] = {
    "dtype": _X.astype(np.int32),
    "shape": _X.reshape(8, 8),
    "count": np.zeros(63, np.float32),
}


@ERRORS.each(_SAME_SIZE)
def guarded(context: Context, name: str) -> None:
    """The bridge refuses arguments that plugins would compute with, wrongly."""
    client = context.client
    with client.compile(ADD) as executable:
        try:
            executable(_X, _SAME_SIZE[name])
        except SignatureMismatch:
            works(client, f"an argument of another {name}")
            return
        raise Fail(f"an argument of another {name} was accepted")


@ERRORS.check
def negative_dimension(context: Context) -> None:
    """A buffer with a negative dimension is refused."""
    client = context.client
    dims = int64s((-4,))
    refused(
        lambda: client.api.call(
            "Client_BufferFromHostBuffer",
            client=client.handle.pointer,
            data=raw.address(_X),
            type=dtypes.of("float32").code,
            dims=ctypes.addressof(dims),
            num_dims=1,
            device=client.devices[0].pointer,
        ),
        "the dimension -4",
    )
    works(client, "a negative dimension")


@ERRORS.check
def more_than_memory(context: Context) -> None:
    """A buffer of four terabytes is refused with RESOURCE_EXHAUSTED, and the client works on."""
    client = context.client
    huge = np.broadcast_to(np.float32(0), (1 << 20, 1 << 20))

    def put() -> None:
        with client.put(huge) as buffer:
            buffer.block_until_ready()

    error = refused(put, "a buffer of four terabytes")
    equal(error.code, ErrorCode.RESOURCE_EXHAUSTED, "code of the error")
    works(client, "running out of memory")


@ERRORS.check
def program_beyond_memory(context: Context) -> None:
    """A program with a result of four terabytes is refused, or fails when it runs."""
    client = context.client
    text = """module { func.func @main(%a: tensor<f32>) -> tensor<1048576x1048576xf32> {
      %0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<1048576x1048576xf32>
      return %0 : tensor<1048576x1048576xf32> } }"""

    def run() -> None:
        with client.compile(text) as executable:
            (result,) = executable(np.float32(1))
            result.block_until_ready()

    refused(run, "a result of four terabytes")
    works(client, "a program that runs out of memory")


@ERRORS.check
def failed_input(context: Context) -> None:
    """An error after an error is clean as well, a hundred times."""
    client = context.client
    for _ in range(100):
        refused(lambda: raw.compile_bytes(client, b"nothing", _OPTIONS), "no program")
    works(client, "a hundred errors")


@ERRORS.check
def results_after_errors(context: Context) -> None:
    """Results that were made before an error stay right after it."""
    client = context.client
    with client.compile(ADD) as executable:
        (result,) = executable(_X, _X)
        refused(lambda: raw.compile_bytes(client, b"nothing", _OPTIONS), "no program")
        same(result.to_numpy(), _X + _X, "a result from before an error")
