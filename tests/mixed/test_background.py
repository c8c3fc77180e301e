"""Work beside the calls: one thing after the other."""

import subprocess
import sys
import threading
from functools import partial

import pytest

from pjrt_bridge.mixed.background import WAITING, Background


def test_one_thing_after_the_other() -> None:
    background, go_on, done = Background(), threading.Event(), threading.Event()
    order: list[int] = []

    def first() -> None:
        assert go_on.wait(30)
        order.append(-1)

    assert background.begin(first)
    taken = 0
    while background.begin(partial(order.append, taken)):
        taken += 1
    go_on.set()
    while not background.begin(done.set):
        threading.Event().wait(0.01)
    assert done.wait(30)
    assert order == list(range(-1, taken))
    assert WAITING - 1 <= taken <= WAITING + 1


def test_no_thread_can_be_started_when_the_interpreter_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    background = Background()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert not background.begin(lambda: None)
    done = threading.Event()
    assert background.begin(done.set)
    assert done.wait(30)


def test_a_process_that_ends_waits_for_what_is_under_way_alone() -> None:
    program = (
        "import time\n"
        "from pjrt_bridge.mixed.background import BACKGROUND\n"
        "def work(): time.sleep(0.2); print('done')\n"
        "for _ in range(9): assert BACKGROUND.begin(work)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout == b"done\n"


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_BACKGROUND", "off")
    assert Background().is_off
    monkeypatch.delenv("PJRT_BRIDGE_BACKGROUND")
    assert not Background().is_off
