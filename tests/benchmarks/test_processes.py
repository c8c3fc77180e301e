import os
import signal
import time
from pathlib import Path

import pytest

from benchmarks.processes import Missing, Process


def missing(process: Process, do: str, **request: object) -> Missing:
    with pytest.raises(Missing) as caught:
        process.ask(do, **request)
    return caught.value


def test_what_fails_is_told_and_the_worker_goes_on() -> None:
    with Process() as process:
        unknown = missing(process, "prepare", case="no such case", competitor="eager")
        assert unknown.status == "failed"
        assert "no such case" in unknown.reason
        assert missing(process, "time", repeats=1).reason == "AssertionError: nothing was prepared"
        assert process.ask("next") == {"figure": None}


def test_a_worker_that_is_killed_is_told_by_its_signal() -> None:
    with Process() as process:
        assert process.ask("next") == {"figure": None}
        os.kill(process.pid, signal.SIGKILL)
        found = missing(process, "next")
    assert (found.status, found.reason) == ("failed", "the process ended by SIGKILL")


def test_a_worker_that_ends_is_told_by_what_it_said() -> None:
    with Process(environment={"PYTHONPATH": "", "PYTHONHOME": "/nowhere"}) as process:
        found = missing(process, "next")
    assert found.status == "failed"
    assert found.reason.startswith("the process ended with status 1: ")


def test_a_worker_that_does_not_answer_is_killed() -> None:
    with Process() as process:
        assert process.ask("next") == {"figure": None}
        os.kill(process.pid, signal.SIGSTOP)
        started = time.monotonic()
        assert missing(process, "next", patience=0.2).reason == "no answer within 0.2 s"
    assert time.monotonic() - started < 5


def test_an_interpreter_that_is_not_there_is_absent() -> None:
    with pytest.raises(Missing, match="/nowhere/python cannot be run: No such file") as caught:
        Process("/nowhere/python")
    assert caught.value.status == "absent"


def test_what_cannot_be_imported_is_absent() -> None:
    with Process() as process:
        found = missing(process, "prepare", case="add of two arrays of 64", competitor="torch_xla")
    assert found.status == "absent"
    assert "torch_xla" in found.reason


def test_without_tensorflow_its_competitors_are_absent(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError('no TensorFlow here')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with Process(environment={"PYTHONPATH": path}) as process:
        for competitor in ("tf.function", "jit_compile", "tf_interop"):
            found = missing(process, "prepare", case="Dense of 8, batch 1", competitor=competitor)
            assert (found.status, found.reason) == ("absent", "no TensorFlow here")


def test_what_libraries_print_is_no_answer() -> None:
    with Process(environment={"PYTHONVERBOSE": "1"}) as process:
        assert process.ask("next") == {"figure": None}
