"""Tables made of Python functions, called through the same gate as every plugin."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from pjrt_bridge.abi.api import REQUIRED, Api
from pjrt_bridge.abi.extension_structs import by_name
from pjrt_bridge.abi.functions import FUNCTIONS
from pjrt_bridge.abi.implement import Implementation
from pjrt_bridge.abi.implementation_objects import Errors, Keep, Objects, Status
from pjrt_bridge.abi.values import decode_named_values, read_int64s, read_pointers, text
from pjrt_bridge.errors import (
    ErrorCode,
    Internal,
    InvalidArgument,
    PjrtError,
    ResourceExhausted,
    Unimplemented,
)
from pjrt_bridge.runtime import Plugin


def nothing(args: Any) -> None:
    """A function that succeeds."""


ERRORS = {"Error_Destroy", "Error_Message", "Error_GetCode"}


def table(
    functions: Mapping[str, Callable[[Any], int | None]] | None = None, **options: Any
) -> tuple[Implementation, Api]:
    given = {name: nothing for name in REQUIRED if name not in ERRORS} | dict(functions or {})
    made = Implementation(given, **options)
    return made, Api(made.address, plugin="made", keepalive=made)


def test_outputs_come_back() -> None:
    def name(args: Any) -> None:
        args.platform_name, args.platform_name_size = keep.text("python")

    keep = Keep()
    _, api = table({"Client_PlatformName": name})
    found = api.call("Client_PlatformName", client=1)
    assert text(found.platform_name, found.platform_name_size) == "python"
    assert api.version == (0, 81)
    assert api.struct_size == 984


@pytest.mark.parametrize("code", [*ErrorCode][1:])
def test_a_status_becomes_an_error_and_nothing_of_it_stays(code: ErrorCode) -> None:
    def fail(args: Any) -> None:
        raise Status(code, "it broke: ä")

    made, api = table({"Client_Create": fail})
    with pytest.raises(PjrtError, match="it broke: ä") as found:
        api.call("Client_Create")
    assert found.value.code == code
    assert made.errors_alive == 0


def test_a_function_that_runs_out_of_memory_says_so() -> None:
    def fail(args: Any) -> None:
        np.empty(1 << 60, np.uint8)

    _, api = table({"Client_Create": fail})
    with pytest.raises(ResourceExhausted, match="Unable to allocate"):
        api.call("Client_Create")


def test_an_exception_in_a_function_is_an_internal_error() -> None:
    def fail(args: Any) -> None:
        raise KeyError("lost")

    _, api = table({"Client_Create": fail})
    with pytest.raises(Internal, match="KeyError: 'lost'"):
        api.call("Client_Create")


def test_args_of_an_older_caller_are_refused() -> None:
    made, _ = table({"Event_IsReady": nothing})
    struct = FUNCTIONS["Event_IsReady"]
    assert struct is not None
    args = struct.ctype(struct.size - 8)
    offset = 40 + 8 * list(FUNCTIONS).index("Event_IsReady")
    pointer = ctypes.c_void_p.from_address(made.address + offset).value
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(pointer or 0)
    error = call(ctypes.addressof(args))
    assert error
    message = Api(made.address, plugin="made").error(error, "Event_IsReady")
    assert isinstance(message, InvalidArgument)
    assert "struct_size is 17, expected at least 25" in str(message)
    assert call(None), "NULL is refused as well"


def test_tables_end_where_they_are_told_to_and_have_holes() -> None:
    _, api = table(slots=100, without=["Plugin_Attributes"])
    assert api.struct_size == 40 + 800
    assert not api.has("Plugin_Attributes")
    with pytest.raises(Unimplemented, match="needs"):
        api.call("Client_FulfillAliasBuffer")


def test_a_base_does_what_is_not_replaced(plugin: Plugin) -> None:
    seen = []

    def compile_(args: Any) -> int | None:
        seen.append(args.compile_options_size)
        if len(seen) == 1:
            raise Status(ErrorCode.INVALID_ARGUMENT, "once")
        return made.call_base("Client_Compile", args)

    made = Implementation({"Client_Compile": compile_}, base=plugin.api.address)
    wrapped = Plugin.from_address(made.address, name="wrapped", keepalive=made)
    with wrapped.client({"cpu_device_count": 1}) as client:
        # The first compilation asks whether safe flags are known; a refusal is an answer.
        program = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {return %a : tensor<2xf32>}"
        assert np.asarray(client.compile(program)(np.ones(2, np.float32))[0]).tolist() == [1, 1]
        with pytest.raises(PjrtError) as found:
            client.compile(
                "func.func @main() -> tensor<f32> {"
                " %0 = stablehlo.custom_call @none() : () -> tensor<f32>"
                " return %0 : tensor<f32> }"
            )
        assert "none" in str(found.value), "an error of the base keeps its message"
    assert len(seen) >= 3
    assert made.errors_alive == 0
    assert wrapped.extensions == plugin.extensions


def test_pointers_to_objects_know_their_past() -> None:
    objects = Objects()
    first, second = objects.add("text"), objects.add(7)
    assert objects.get(first, str) == "text"
    assert objects.count() == 2
    assert objects.count(int) == 1
    assert objects.remove(first, str) == "text"
    for pointer, kind, why in [
        (first, str, "destroyed before"),
        (second, str, "found a int"),
        (0, str, "NULL"),
        (None, str, "NULL"),
        (1 << 40, int, "never was one"),
    ]:
        with pytest.raises(Status, match=why):
            objects.get(pointer, kind)
    assert objects.add("another") not in (first, second)


def test_kept_memory_reads_back() -> None:
    keep = Keep()
    values = {"a": 1, "b": "two", "c": [3, 4], "d": True}
    assert decode_named_values(*keep.named_values(values)) == values | {"c": (3, 4)}
    assert read_int64s(keep.int64s([1, -2]), 2) == (1, -2)
    assert read_pointers(keep.pointers([8, 16]), 2) == (8, 16)
    texts, sizes = keep.texts(["ab", ""])
    assert [
        text(at, size)
        for at, size in zip(
            (ctypes.c_void_p * 2).from_address(texts), read_int64s(sizes, 2), strict=True
        )
    ] == ["ab", ""]
    assert list((ctypes.c_int * 2).from_address(keep.int32s([5, 6]))) == [5, 6]


def test_void_functions_leave_no_error_behind() -> None:
    made, api = table()
    api.call("Error_Destroy", error=48)
    assert api.call("Error_Message", error=48).message is None
    assert made.errors_alive == 0


def test_errors_are_handed_over_otherwise_than_by_a_return() -> None:
    errors = Errors()
    _, api = table(errors=errors)
    found = api.error(errors.new(ErrorCode.INTERNAL, "later"), "Event_OnReady")
    assert isinstance(found, Internal)
    assert "later" in str(found)
    assert errors.count() == 0


def test_extensions_in_front_of_the_chain() -> None:
    def default(args: Any) -> None:
        raise Status(ErrorCode.INTERNAL, f"{args.num_dims} dimensions")

    made, _ = table()
    layouts = by_name("Layouts")
    made.add_extension(by_name("FFI"), {})
    first = made.add_extension(layouts, {"Client_GetDefaultLayout": default}, size=48)
    plugin = Plugin.from_address(made.address, name="made", keepalive=made)
    assert [(link.name, link.struct_size) for link in plugin.extensions] == [
        ("Layouts", 48),
        ("FFI", by_name("FFI").struct.size),
    ]
    assert plugin.extensions[0].address == first
    assert plugin.extensions[0].pointer(layouts.offset_of("Buffer_MemoryLayout")) is None
    pointer = plugin.extensions[0].pointer(layouts.offset_of("Client_GetDefaultLayout"))
    assert pointer
    args = layouts.functions["Client_GetDefaultLayout"]
    assert args
    entry = plugin.api.entry(pointer, args)
    with pytest.raises(Internal, match="3 dimensions"):
        plugin.api.invoke(entry, "Layouts_Client_GetDefaultLayout", {"num_dims": 3})
    with pytest.raises(KeyError):
        made.add_extension(layouts, {"Nothing": default})
