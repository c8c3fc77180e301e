"""Functions of a table over Python objects, called through the same gate as every plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.abi.python_plugins import Functions, fill, host_array, invalid
from pjrt_bridge.abi.values import decode_named_values, read_int64s, text
from pjrt_bridge.errors import InvalidArgument, Unimplemented


@dataclass(eq=False)
class Client:
    number: int = 3


def gate(functions: Functions) -> Api:
    made = functions.table()
    return Api(made.address, plugin="made", keepalive=made)


def test_a_function_gets_the_object_behind_the_first_pointer() -> None:
    functions = Functions()

    @functions.implements("Client_ProcessIndex", Client)
    def index(client: Client, args: Any) -> None:
        args.process_index = client.number

    api = gate(functions)
    pointer = functions.objects.add(Client(7))
    assert api.call("Client_ProcessIndex", client=pointer).process_index == 7
    for wrong, message in ((0, "found NULL"), (functions.objects.add("x"), "found a str")):
        with pytest.raises(InvalidArgument, match=message):
            api.call("Client_ProcessIndex", client=wrong)


def test_getters_fill_texts_numbers_arrays_and_named_values() -> None:
    functions = Functions()
    functions.getter("Client_PlatformName", Client, platform_name=lambda it: f"é{it.number}")
    functions.getter("Client_Devices", Client, devices=lambda it: (16, it.number))
    functions.getter("Buffer_Dimensions", Client, dims=lambda it: ())
    functions.getter(
        "DeviceDescription_Attributes", Client, attributes=lambda it: {"a": it.number, "b": (1, 2)}
    )
    functions.getter("Device_IsAddressable", Client, is_addressable=lambda it: it.number == 3)
    api, pointer = gate(functions), functions.objects.add(Client())
    name = api.call("Client_PlatformName", client=pointer)
    assert text(name.platform_name, name.platform_name_size) == "é3"
    assert name.platform_name == api.call("Client_PlatformName", client=pointer).platform_name
    devices = api.call("Client_Devices", client=pointer)
    assert read_int64s(devices.devices, devices.num_devices) == (16, 3)
    assert api.call("Buffer_Dimensions", buffer=pointer).num_dims == 0
    found = api.call("DeviceDescription_Attributes", device_description=pointer)
    assert decode_named_values(found.attributes, found.num_attributes) == {"a": 3, "b": (1, 2)}
    assert api.call("Device_IsAddressable", device=pointer).is_addressable


def test_destructors_take_null_and_know_what_was_destroyed() -> None:
    functions = Functions()
    functions.destructor("Client_Destroy", Client)
    api, pointer = gate(functions), functions.objects.add(Client())
    api.call("Client_Destroy", client=None)
    api.call("Client_Destroy", client=pointer)
    assert functions.objects.count() == 0
    with pytest.raises(InvalidArgument, match="destroyed before"):
        api.call("Client_Destroy", client=pointer)


def test_what_is_not_given_is_unimplemented_and_named() -> None:
    functions = Functions()
    functions["Plugin_Attributes"] = lambda args: fill(args, attributes={})
    api = gate(functions)
    assert api.call("Plugin_Attributes").num_attributes == 0
    with pytest.raises(Unimplemented, match="PJRT_Client_Create is not implemented"):
        api.call("Client_Create")


def test_a_name_that_is_no_function_is_refused() -> None:
    for method in (Functions().getter, Functions().destructor, Functions().implements):
        with pytest.raises(KeyError, match="PJRT_Client_Creat are not declared"):
            method("Client_Creat", Client)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "bool", "complex64"])
def test_host_arrays_with_strides_of_any_sign(name: str) -> None:
    dtype = dtypes.of(name)
    data = np.arange(12).reshape(3, 4).astype(dtype.numpy)
    for view in (data, data.T, data[::-1, ::2], data[:, ::-1]):
        found = host_array(view.__array_interface__["data"][0], view.shape, dtype, view.strides)
        assert np.array_equal(found, view)
    host_array(data.ctypes.data, (12,), dtype)[0] = 1
    assert data[0, 0] == 1


def test_host_arrays_without_elements_or_memory() -> None:
    float32 = dtypes.of("float32")
    assert host_array(None, (3, 0), float32).shape == (3, 0)
    with pytest.raises(Status, match=r"the address of \(2,\) elements is NULL"):
        host_array(0, (2,), float32)


def test_errors_have_their_codes() -> None:
    functions = Functions()

    def fail(args: Any) -> None:
        raise invalid("no such option")

    functions["Client_Create"] = fail
    with pytest.raises(InvalidArgument, match="no such option"):
        gate(functions).call("Client_Create")
