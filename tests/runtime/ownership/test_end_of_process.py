"""Ends of processes with objects alive and work under way."""

import pytest

from tests.plugins import PRELUDE, run_python, working_threads
from tests.runtime.ownership.test_process import CLIENT, in_process


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
