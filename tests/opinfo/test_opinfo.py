"""Every operator of torch's database gives what eager gives, and runs where the file says."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator

import pytest

from tests.opinfo import expectations
from tests.opinfo.case import Case
from tests.opinfo.sweep import Sweep
from tests.sweeping import worker as worker_process
from tests.sweeping.command import differences

EXPECTED = expectations.load()

_PART = 32
"""One case in so many belongs to the part that is always run."""

ALWAYS = [case for case in EXPECTED if zlib.crc32(str(case).encode()) % _PART == 0]
ENTRIES = sorted({case.entry for case in EXPECTED})


@pytest.fixture(scope="module")
def worker() -> Iterator[Sweep]:
    with Sweep() as found:
        yield found


def test_the_file_has_every_case_of_the_database(worker):
    assert set(worker.cases()) == set(EXPECTED)


@pytest.mark.parametrize("case", ALWAYS, ids=str)
def test_a_part(worker, case):
    assert not differences([worker.run(case)], EXPECTED)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("entry", ENTRIES)
def test_all(worker, entry):
    keys = [case for case in EXPECTED if case.entry == entry]
    assert not differences([worker.run(case) for case in keys], EXPECTED)


def test_the_file_reads_as_it_is_written():
    text = expectations.FILE.read_text()
    assert expectations.dump(EXPECTED, text.split()[2].rstrip(";")) == text


FRAGILE = """
import json, os, sys
print(json.dumps([dict(entry=e, dtype="float32", direction="forward") for e in "abc"]), flush=True)
for line in sys.stdin:
    if json.loads(line)["entry"] == "b":
        os.abort()
    print(json.dumps(dict(outcomes=["device"], problems=[], seconds=0.1)), flush=True)
"""


def test_a_case_that_kills_the_process_is_named_and_the_rest_goes_on():
    with Sweep([sys.executable, "-c", FRAGILE]) as fragile:
        results = [fragile.run(case) for case in fragile.cases()]
    assert [result.outcome for result in results] == ["device", "", "device"]
    assert results[1].problems == ("the process ended with status -6",)


def test_a_case_that_hangs_is_ended():
    hanging = FRAGILE.replace("os.abort()", "sys.stdin.read()")
    with Sweep([sys.executable, "-c", hanging], limit=1) as slow:
        results = [slow.run(case) for case in slow.cases()]
    assert results[1].problems == ("no answer within 1 s",)
    assert results[2].outcome == "device"


def test_a_worker_that_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(worker_process, "ENDING", 0.5)
    with Sweep([sys.executable, "-c", FRAGILE + "import time\ntime.sleep(600)"]) as slow:
        slow.cases()
        process = slow._started()
    assert process.poll() == -9


def test_an_interrupted_case_leaves_no_answer_behind(monkeypatch):
    hanging = FRAGILE.replace("os.abort()", "sys.stdin.read()")
    with Sweep([sys.executable, "-c", hanging]) as slow:
        first, second, third = slow.cases()
        process = slow._started()
        monkeypatch.setattr(process, "stdout", Interrupted(process.stdout))
        with pytest.raises(KeyboardInterrupt):
            slow.run(second)
        assert process.poll() is not None
        assert slow.run(first).outcome == slow.run(third).outcome == "device"


class Interrupted:
    def __init__(self, stream) -> None:
        self._stream = stream

    def readline(self) -> str:
        raise KeyboardInterrupt

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


def test_better_and_worse_than_expected_are_both_reported(worker):
    case = Case("add", "float32", "forward")
    result = worker.run(case)
    assert result.outcome == "device"
    assert differences([result], {case: "device"}) == []
    assert differences([result], {case: "host aten.add.Tensor"}) == [
        "add float32 forward: device, expected host aten.add.Tensor"
    ]


FAULTY = """
from pjrt_bridge.torch_interop.lowering import registry
from tests.opinfo import worker

registry.names()
registry._LOWERINGS["aten.sin.default"] = registry._LOWERINGS["aten.cos.default"]
worker.main()
"""


@pytest.mark.slow
def test_a_wrong_lowering_is_found():
    with Sweep([sys.executable, "-c", FAULTY]) as faulty:
        wrong = faulty.run(Case("sin", "float32", "forward"))
        right = faulty.run(Case("tan", "float32", "forward"))
    assert wrong.problems
    assert "not close" in wrong.problems[0]
    assert right.problems == ()
