"""What holds of launches whichever way tensors are read and made.

PyTorch plays both kinds of framework: through DLPack's exchange API, and through capsules.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from pjrt_bridge.abi.api import Api
from pjrt_bridge.errors import Internal, PjrtError
from pjrt_bridge.runtime import Client, Executable
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.runtime.ownership.exit import live
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from tests import programs
from tests.conftest import Census
from tests.counting import resident, settled
from tests.forked import TORCH
from tests.plugins import PRELUDE, require_dispatcher, run_python, working_threads
from tests.runtime.dispatch.launching import FailingFunction, Launcher, capsules, too_small
from tests.runtime.ownership.pending import Pending

require_dispatcher()

ONES = torch.ones(64)


@pytest.fixture(params=["exchange", "capsules"])
def exchange(request: pytest.FixtureRequest) -> plans.Framework | plans.Capsules | None:
    return ADAPTER.exchange() if request.param == "exchange" else capsules()


@pytest.fixture
def executable(client: Client) -> Iterator[Executable]:
    with client.compile(programs.ADD) as found:
        yield found


@pytest.fixture
def add(executable: Executable, exchange: Any) -> Launcher:
    return Launcher(executable, (), exchange)


# -- values ----------------------------------------------------------------------------------------


def test_results_and_what_crossed(no_leaks: Census, add: Launcher) -> None:
    launch = add.start(ONES, ONES * 2)
    assert (launch.shared, launch.copied) == (512, 0)
    with pytest.raises(RuntimeError, match="not finished"):
        launch.tensors()
    launch.finish()
    launch.finish()
    (result,) = launch.tensors()
    assert result.tolist() == [3.0] * 64
    assert result.data_ptr() % 64 == 0
    assert type(result) is torch.Tensor
    assert not result._is_view()
    assert not result.requires_grad
    result.add_(1)
    assert launch.outputs[0].tensor().tolist() == [4.0] * 64


def test_unaligned_memory_is_copied(no_leaks: Census, add: Launcher) -> None:
    launch = add.start(torch.arange(65.0)[1:], ONES)
    assert (launch.shared, launch.copied) == (256, 256)
    launch.finish()
    assert launch.tensors()[0].tolist() == [value + 2.0 for value in range(64)]


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(64, dtype=torch.int32),
        torch.ones(8, 8),
        torch.ones(63),
        torch.ones(128)[::2],
        torch.ones(64, dtype=torch.complex64).conj(),
        torch.ones(1).expand(64),
        torch.ones(64, device="meta"),
        np.ones(64, np.float32),
        None,
        3,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_does_not_fit_as_it_is(no_leaks: Census, add: Launcher, value: Any) -> None:
    assert add.start(value, ONES) == 0
    assert add.start(ONES, value) == 1
    assert add(ONES, ONES)[0].tolist() == [2.0] * 64


# -- many ------------------------------------------------------------------------------------------


def test_results_dropped_by_threads_of_torch(no_leaks: Census, add: Launcher) -> None:
    """Autograd frees what it saved on its own threads, which do not hold the GIL."""
    for _ in range(20):
        (saved,) = add(ONES, ONES)
        x = torch.ones(64, requires_grad=True)
        y = (x * saved).sum()
        del saved
        y.backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0] * 64
        del x, y


def test_ten_thousand_calls_leave_nothing(no_leaks: Census, add: Launcher) -> None:
    def call() -> None:
        launch = add.start(ONES, torch.ones(65)[1:])
        launch.finish()
        launch.tensors()
        add.start(launch.outputs[0], None)
        add.call(ONES, launch.outputs[0])

    for _ in range(1000):
        call()
    alive, before = settled(), resident()
    for _ in range(10_000):
        call()
    assert live() == alive
    assert resident() - before < 4 << 20


def test_eight_threads_on_one_plan(no_leaks: Census, add: Launcher) -> None:
    def work(thread: int) -> None:
        for step in range(300):
            (result,) = add(torch.full((64,), thread * 1000.0), torch.full((64,), float(step)))
            assert result[63] == thread * 1000 + step

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


# -- faults ----------------------------------------------------------------------------------------


def test_a_failure_of_the_execution(client: Client, exchange: Any) -> None:
    census = Census()
    with client.compile(programs.ADD) as executable:
        messages = []
        for way in ("c", "python"):
            value = Pending(client, np.ones(64, np.float32))
            if way == "c":
                launch = Launcher(executable, [value.buffer], exchange).start(ONES)
                wait = launch.finish
            else:
                wait = executable.submit([client.put(ONES), value.buffer])[1].wait
            value.fail("it broke")
            with pytest.raises(Internal, match="it broke") as caught:
                wait()
            messages.append(str(caught.value))
            if way == "c":
                with pytest.raises(RuntimeError, match="not finished"):
                    launch.tensors()
                del launch
            del value, wait, caught
        assert messages[0] == messages[1]
    census.check()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> dict[str, FailingFunction]:
    """The functions of the next plan, by name."""
    found: dict[str, FailingFunction] = {}

    def faulty(api: Api, name: str) -> tuple[int, int]:
        found[name] = FailingFunction(api, name, too_small)
        return found[name].entry

    monkeypatch.setattr(plans, "_entry", faulty)
    return found


def test_buffers_that_the_plugin_does_not_take_back(
    client: Client, exchange: Any, faults: dict[str, FailingFunction]
) -> None:
    """They are its own from then on: nothing waits for them, least of all the exit."""
    census = Census()
    with client.compile(programs.ADD) as executable:
        add = Launcher(executable, (), exchange)
        faults["Buffer_Destroy"].active = True
        assert add(ONES, ONES)[0].tolist() == [2.0] * 64
        faults["Buffer_Destroy"].active = False
        del add
    census.check()


@pytest.mark.parametrize(
    "function",
    [
        "Client_BufferFromHostBuffer",
        "LoadedExecutable_Execute",
        "Event_Await",
        "Buffer_OpaqueDeviceMemoryDataPointer",
    ],
)
def test_functions_that_fail(
    function: str, client: Client, exchange: Any, faults: dict[str, FailingFunction]
) -> None:
    census = Census()
    with client.compile(programs.ADD) as executable:
        add = Launcher(executable, (), exchange)
        for run in (add, add.call, add):
            faults[function].active = True
            with pytest.raises(PjrtError, match=r"[Ss]ize") as caught:
                run(ONES, ONES)
            assert caught.value.function == function
            # Its traceback holds the launch.
            del caught
            faults[function].active = False
            assert run(ONES, ONES)[0].tolist() == [2.0] * 64
        del add, run
    census.check()


# -- the process -----------------------------------------------------------------------------------

COMMON = """
import gc, os, signal, threading, time, torch
from tests.runtime.dispatch.launching import Launcher, capsules
client = cpu_plugin().client({"cpu_device_count": 1})
ones, big = torch.ones(64), torch.ones(512, 512)
unread = []
"""
LAUNCHERS = {
    "exchange": """
add, slow = Launcher(client.compile(programs.ADD)), Launcher(client.compile(programs.SLOW))
read = lambda tensor: tensor
""",
    # The sums stay capsules until they are read.
    "capsules": """
def hold(capsule):
    unread.append(capsule)
    return capsule
add = Launcher(client.compile(programs.ADD), (), capsules(adopt=hold))
slow = Launcher(client.compile(programs.SLOW), (), capsules())
read = torch.from_dlpack
""",
}


def in_process(way: str, source: str, prelude: str = PRELUDE) -> str:
    """Run Python that has `add` and `slow`, with tensors that go this way."""
    return run_python(COMMON + LAUNCHERS[way] + source, prelude=prelude, imported=[TORCH])


def on_both(work: str) -> list[tuple[str, str]]:
    return [(way, work) for way in LAUNCHERS]


@pytest.mark.parametrize("way", LAUNCHERS)
def test_a_forked_child_is_told(way: str) -> None:
    in_process(
        way,
        """
launch, (result,) = slow.start(big), add(ones, ones)
before = live_handles()
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    for use in (lambda: add(ones, ones), launch.finish):
        try:
            use()
        except ForkedProcess:
            continue
        os._exit(1)
    assert float(read(result)[0]) == 2
    del launch, result, add, slow
    unread.clear()
    client.close()
    gc.collect()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert live_handles()["Buffer"] == before["Buffer"] == 3
launch.finish()
assert read(add(ones, ones)[0]).tolist() == [2.0] * 64
""",
    )


@pytest.mark.parametrize(
    ("way", "work"),
    [
        ("exchange", "kept = slow.start(big)"),
        *on_both("slow.start(big)"),
        *on_both("kept = slow.start(big); client.close()"),
        ("exchange", "kept = slow.start(big); kept.finish(); torch.kept_for_good = kept.tensors()"),
        ("exchange", "kept = slow.start(big).outputs"),
        ("capsules", "add(ones, ones); torch.kept_for_good = unread"),
        ("capsules", "torch.kept_for_good = slow(big)"),
    ],
)
def test_an_exit_while_a_program_runs_or_with_results_left(way: str, work: str) -> None:
    in_process(way, work)


@pytest.mark.parametrize(
    ("way", "work"),
    [
        ("exchange", "slow(big)"),
        ("exchange", "slow.start(big)"),
        *on_both("add(ones, ones); unread.clear()"),
    ],
)
def test_an_exit_while_threads_work(way: str, work: str) -> None:
    in_process(way, working_threads(work))


def test_an_exit_handler_that_computes() -> None:
    first = "import atexit; atexit.register(lambda: print(add(ones, ones)[0][0].item()))"
    assert in_process("exchange", "", prelude=first + PRELUDE) == "2.0"


def test_nothing_is_started_once_another_thread_exits() -> None:
    """Reading the arguments may take the GIL away, and the process may begin to end meanwhile."""
    printed = run_python("""
import dataclasses, threading, torch
from pjrt_bridge.runtime import native
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from tests.runtime.dispatch.launching import Launcher

def is_lazy(tensor):
    thread = threading.Thread(target=native.module.close)
    thread.start()
    thread.join()
    return False

add = cpu_plugin().client({"cpu_device_count": 1}).compile(programs.ADD)
launcher = Launcher(add, (), dataclasses.replace(ADAPTER.exchange(), is_lazy=is_lazy))
try:
    launcher.start(torch.ones(64), torch.ones(64))
except SystemExit:
    print("ended")
""")
    assert printed == "ended"
