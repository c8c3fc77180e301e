"""What would kill the process or let it hang, each tried in a process of its own.

The order is that of the table of triggers: what a caller of the C API can do wrong, and the nearest
thing that a caller of the bridge can do.
"""

import pytest

from tests.forked import PLAIN, TORCH
from tests.plugins import run_python

CLIENT = """
client = cpu_plugin().client({"cpu_device_count": 2})
ones = np.ones(64, np.float32)
def refuses(error, call):
    try:
        call()
    except error as found:
        assert str(found), "an error without a text"
    else:
        raise AssertionError("it did not raise")
"""


def in_process(source: str) -> str:
    imported = [TORCH] if "import torch" in source else PLAIN
    return run_python(CLIENT + source, imported=imported)


def test_empty_compile_options() -> None:
    in_process("""
for bad in (0, -1, None, "1", True):
    refuses(OptionError, lambda: CompileOptions(num_replicas=bad))
for bad in (b"", {}, "", 0):
    refuses(OptionError, lambda: client.compile(programs.ADD, options=bad))
client.compile(programs.ADD, options=None)
""")


def test_more_devices_than_memory_can_hold() -> None:
    in_process("""
options = CompileOptions(num_replicas=1 << 20, num_partitions=1 << 20)
refuses(OptionError, lambda: client.compile(programs.ADD, options=options))
""")


def test_create_options_of_the_wrong_type() -> None:
    in_process("""
plugin = cpu_plugin()
for bad in ("2", 2.0, True, None, [2], b"2", object()):
    refuses(OptionError, lambda: plugin.client({"cpu_device_count": bad}))
    refuses(OptionError, lambda: Client(plugin, {"cpu_device_count": bad}))
refuses(OptionError, lambda: plugin.client({"cpu_device_count": 0}))
refuses(OptionError, lambda: Client(plugin, {"cpu_device_count": -1}))
""")


def test_element_types_that_the_plugin_dies_of() -> None:
    in_process("""
import ml_dtypes
for bad in (np.zeros(3, ml_dtypes.float6_e2m3fn), None, "x", np.zeros(3, "M8[s]"), object()):
    refuses(UnsupportedDtype, lambda: client.put(bad))
""")


def test_data_that_is_not_there() -> None:
    in_process("""
from pjrt_bridge.dtypes import of
from pjrt_bridge.runtime.transfers.host import HostArray
for shape in ((0,), (3, 0)):
    empty = client.put_host(HostArray(0, of("float32"), shape, None, None))
    assert empty.to_numpy().shape == shape
refuses(DataError, lambda: client.put_host(HostArray(0, of("float32"), (3,), None, None)))
refuses(DataError, lambda: client.put_host(HostArray(0, of("float32"), (-3,), None, None)))
refuses(DataError, lambda: client.put_host(HostArray(64, of("float32"), (3, 3), (4,), None)))
""")


def test_places_that_are_none() -> None:
    in_process("""
other = cpu_plugin().client({"cpu_device_count": 1})
for bad in (other.devices[0], 0, "cpu", client.memories[0]):
    refuses(DataError, lambda: client.put(ones, bad))
refuses(DataError, lambda: client.put(ones, memory=other.memories[0]))
buffer = client.put(ones)
refuses(DataError, lambda: buffer.copy_to(other.devices[0]))
refuses(DataError, lambda: buffer.copy_to(None))
portable = client.compile(programs.CONSTANT, options=CompileOptions(portable=True))
refuses(DataError, lambda: portable.execute([], device=other.devices[0]))
""")


def test_buffers_that_are_none() -> None:
    in_process("""
add = client.compile(programs.ADD)
buffer = client.put(ones)
for bad in (None, 0, ones, object()):
    refuses(SignatureMismatch, lambda: add.execute([buffer, bad]))
gone = client.put(ones)
gone.delete()
refuses(BufferUnavailable, lambda: add.execute([buffer, gone]))
refuses(BufferUnavailable, lambda: add(buffer, gone))
refuses(SignatureMismatch, lambda: add.execute([]))
refuses(PluginIncompatible, lambda: Buffer.of_pointer(client, None, buffer.type, buffer.device))
""")


def test_events_that_are_none() -> None:
    in_process("""
buffer = client.put(ones)
event = buffer.ready_event()
event.close()
refuses(Closed, event.wait)
refuses(Closed, lambda: event.ready)
from pjrt_bridge.runtime.ownership.handles import Handle
refuses(PluginIncompatible, Handle(client.api, "Event", client.handle).own)
""")


def test_deleting_twice_and_using_after() -> None:
    in_process("""
import gc
buffer = client.put(ones)
for _ in range(3):
    buffer.delete()
refuses(BufferUnavailable, buffer.to_numpy)
refuses(BufferUnavailable, buffer.ready_event)
add = client.compile(programs.ADD)
for _ in range(3):
    add.close()
refuses(Closed, lambda: add(ones, ones))
refuses(Closed, add.cost)
for _ in range(3):
    client.close()
refuses(Closed, lambda: client.put(ones))
refuses(Closed, lambda: client.compile(programs.ADD))
del buffer, add, client
gc.collect()
assert live_handles() == {}
""")


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        ("ones.view(np.int32)", "i32[64]"),
        ("ones.reshape(8, 8)", "f32[8,8]"),
    ],
)
def test_arguments_that_run_with_a_wrong_answer(argument: str, found: str) -> None:
    printed = in_process(f"""
add = client.compile(programs.ADD)
try:
    add(ones, {argument})
except SignatureMismatch as error:
    print(error)
""")
    assert f"found {found}, expected f32[64]" in printed


def test_a_layout_that_runs_with_a_wrong_answer() -> None:
    in_process("""
columns = '{mhlo.layout_mode = "{0,1}"}'
make = client.compile(programs.identity("tensor<8x8xf32>", result=columns))
use = client.compile(programs.identity("tensor<8x8xf32>"))
data = np.arange(64, dtype=np.float32).reshape(8, 8)
(buffer,) = make(data)
refuses(SignatureMismatch, lambda: use.execute([buffer]))
assert (buffer.to_numpy() == data).all()
assert (np.asarray(buffer) == data).all()
""")


def test_functions_and_slots_that_are_not_there() -> None:
    in_process("""
api = client.api
refuses(Unimplemented, lambda: api.call("Device_GetAttributes", device=0))
refuses(Unimplemented, lambda: api.call("Executable_ParameterMemoryKinds", executable=0))
refuses(PjrtBridgeError, lambda: api.call("Client_Explode"))
""")


def test_readers_of_a_deleted_buffer_learn_it_from_the_event() -> None:
    in_process("""
buffer = client.put(ones, copy=True)
client.api.call("Buffer_Delete", buffer=buffer.handle.pointer)
for read in (buffer.to_numpy, buffer.block_until_ready, buffer.__dlpack__, lambda: buffer.address):
    refuses(PjrtError, read)
""")
