"""Forked children: plugins that the parent loaded are refused, and nothing of the parent ends."""

from tests.runtime.ownership.test_process import in_process

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
