"""What would kill the process or let it hang, each tried in a process of its own.

The order is that of the table of triggers: what a caller of the C API can do wrong, and the nearest
thing that a caller of the bridge can do.
"""

import pytest

from tests.forked import PLAIN, TORCH
from tests.plugins import PRELUDE, run_python, working_threads

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


# -- fork ------------------------------------------------------------------------------------------

FORK = """
import gc, os, signal, sys
# An executable of the cache has its bytes, and needs no plugin to tell them.
os.environ["PJRT_BRIDGE_CACHE"] = "off"
def child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        work()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_forked_child_is_told() -> None:
    in_process(
        FORK
        + """
add, buffer = client.compile(programs.ADD), client.put(ones)
plugin = cpu_plugin()
uses = [
    lambda: add(ones, ones), lambda: add.execute([buffer, buffer]), buffer.to_numpy,
    buffer.block_until_ready, lambda: buffer.copy_to(client.devices[0]), buffer.__dlpack__,
    lambda: client.put(ones), lambda: client.compile(programs.ADD), add.serialize, add.cost,
    plugin.client, lambda: plugin.client({"cpu_device_count": 1}), lambda: Client(plugin),
]
def work():
    for use in uses:
        refuses(ForkedProcess, use)
child(work)
assert (add(ones, ones)[0].to_numpy() == 2).all()
"""
    )


def test_what_a_child_drops_stays_alive_in_the_parent() -> None:
    in_process(
        FORK
        + """
import torch
buffers = [client.put(ones + i, copy=True) for i in range(10)]
views = [np.asarray(b) for b in buffers[:5]] + [torch.from_dlpack(b) for b in buffers[5:]]
add = client.compile(programs.ADD)
before = live_handles()
def work():
    global buffers, views, add, client
    assert float(views[3][0]) == 4 and float(views[7][0]) == 8
    buffers[0].delete()
    client.close()
    del buffers, views, add, client
    gc.collect()
child(work)
gc.collect()
assert live_handles() == before
assert [float(view[0]) for view in views] == [i + 1.0 for i in range(10)]
assert (add(ones, ones)[0].to_numpy() == 2).all()
"""
    )


def test_a_child_that_leaves_by_the_front_door() -> None:
    in_process(
        FORK
        + """
buffer = client.put(ones, copy=True)
view, slow = np.asarray(buffer), client.compile(programs.SLOW)
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert view[0] == 1
"""
    )


def test_forking_while_other_threads_work() -> None:
    in_process(
        FORK
        + """
import threading
add, stop = client.compile(programs.ADD), threading.Event()
def work():
    while not stop.is_set():
        np.asarray(add(ones, client.put(ones, copy=True))[0])
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
def inside():
    refuses(ForkedProcess, lambda: client.put(ones))
    refuses(ForkedProcess, lambda: cpu_plugin().client({"cpu_device_count": 1}))
    live_handles()
    gc.collect()
for _ in range(20):
    child(inside)
stop.set()
for thread in threads:
    thread.join()
"""
    )


def test_workers_of_a_data_loader() -> None:
    printed = in_process("""
import torch, warnings
from torch.utils.data import DataLoader, Dataset
results = [torch.from_dlpack(client.put(ones * i, copy=True)) for i in range(8)]
class Rows(Dataset):
    def __len__(self):
        return len(results)
    def __getitem__(self, index):
        return results[index] + 1
loader = DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork")
print([float(batch.sum()) for _ in range(2) for batch in loader])
add = client.compile(programs.ADD)
assert (add(ones, ones)[0].to_numpy() == 2).all()
""")
    assert printed == str([64.0 * (4 * i + 3) for i in range(4)] * 2)


# -- the end of the process ------------------------------------------------------------------------


def test_an_exit_with_everything_alive() -> None:
    in_process("""
import torch, threading
add = client.compile(programs.ADD)
buffer = client.put(ones)
result, = add(ones, ones)
views = np.asarray(result), torch.from_dlpack(result), np.from_dlpack(buffer)
capsule = buffer.__dlpack__()
event = client.compile(programs.SLOW).submit([client.put(np.ones((512, 512), np.float32))])
cycle = [buffer, views]; cycle.append(cycle)
class Late:
    def __del__(self, buffer=buffer, views=views):
        assert float(views[0][0]) == 2
        buffer.delete()
late = Late()
torch.pjrt_bridge_test = views, late
""")


def test_an_exit_with_objects_that_outlive_all_modules() -> None:
    in_process("""
import sys, threading
sys.kept = [client.put(ones), client.compile(programs.ADD)]
threading.kept = client.put(ones)
""")


SLOW = """
import atexit, threading, time
slow = client.compile(programs.SLOW)
big = client.put(np.ones((512, 512), np.float32))
"""


@pytest.mark.parametrize(
    "work",
    [
        "kept = [slow.execute([big]) for _ in range(4)]",
        "for _ in range(4): slow.execute([big])",
        "kept = slow.submit([big])",
        "slow.execute([big])[0].copy_to(client.devices[1])",
        "slow.submit([big]); big.delete()",
        "slow.execute([big]); slow.close()",
        "slow.execute([big]); client.close()",
        "kept = np.asarray(client.put(ones)); slow.execute([big]); client.close()",
    ],
)
def test_an_exit_while_a_program_runs(work: str) -> None:
    in_process(SLOW + work)


@pytest.mark.parametrize(
    "work",
    [
        "np.asarray(slow.execute([big])[0])",
        "slow.execute([big])[0].block_until_ready()",
        "slow.submit([big])[1].wait()",
        "slow.execute([big]); time.sleep(0.1)",
        "client.put(np.ones((512, 512)), copy=True).to_numpy()",
        "client.compile(programs.SLOW)",
        "Client(cpu_plugin(), {'cpu_device_count': 2})",
    ],
)
def test_an_exit_while_threads_work(work: str) -> None:
    in_process(SLOW + working_threads(work))


def test_an_exit_handler_that_joins_a_thread() -> None:
    """A daemon thread ends without a word when it starts something during the exit."""
    first = """
import atexit
def join():
    threads[0].join(20)
    print("alive:", threads[0].is_alive())
atexit.register(join)
"""
    printed = run_python(
        """
import threading
def work():
    while True:
        client.put(ones)
threads = [threading.Thread(target=work, daemon=True)]
threads[0].start()
""",
        prelude=first + PRELUDE + CLIENT,
    )
    assert printed == "alive: False"


def test_an_exit_handler_that_computes() -> None:
    first = """
import atexit
def compute():
    for executable in (add, client.compile(programs.ADD)):
        print(executable(ones, ones)[0].to_numpy()[0])
atexit.register(compute)
"""
    printed = run_python("add = client.compile(programs.ADD)", prelude=first + PRELUDE + CLIENT)
    assert printed.split() == ["2.0", "2.0"]


def test_an_exit_inside_an_exception() -> None:
    in_process("""
import atexit
buffer = client.put(ones)
atexit.register(lambda: buffer.to_numpy())
def fail(held=[client.put(ones) for _ in range(5)]):
    raise SystemExit(0)
fail()
""")
