"""Checks that end in every way, and plugins that do not get far: what the runner makes of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pjrt_bridge.storage import FOLDER_VARIABLE
from pjrt_bridge_conformance import Report, Result, Status, process, run, suite
from pjrt_bridge_conformance.context import Subject
from pjrt_bridge_conformance.runner import END
from pjrt_bridge_conformance.suite import CLIENT, LOAD, selected
from tests.conformance.plugins import compiled

MODULE = "tests.conformance.misbehaving"
CPU = Subject("cpu", modules=(MODULE,))


def checked(subject: Subject, *patterns: str, limit: float = 60) -> Report:
    return run(subject, selected(suite(subject.modules), patterns), limit=limit)


@pytest.fixture(scope="module")
def report() -> Report:
    patterns = [f"misbehaving.{name}" for name in EXPECTED]
    with pytest.MonkeyPatch.context() as environment:
        # The tests' configuration turns the cache off, which is not what a user has.
        environment.delenv(FOLDER_VARIABLE, raising=False)
        return checked(CPU, *patterns, "devices.platform", limit=4)


@pytest.fixture(scope="module")
def results(report: Report) -> dict[str, Result]:
    return {result.name.removeprefix("misbehaving."): result for result in report.results}


EXPECTED = {
    "passes": (Status.PASS, ""),
    "fails": (Status.FAIL, "found 1, expected 2"),
    "unsupported": (Status.UNSUPPORTED, "not here"),
    "unimplemented": (Status.UNSUPPORTED, "UNIMPLEMENTED: not yet"),
    "absent": (Status.ABSENT, "no second one"),
    "internal": (Status.FAIL, "Internal: INTERNAL: broken inside"),
    "raises": (Status.FAIL, "ZeroDivisionError at misbehaving.py:"),
    "aborts": (Status.CRASH, "crashed (SIGABRT)"),
    "segfaults": (Status.CRASH, "crashed (SIGSEGV)"),
    "exits": (Status.CRASH, "ended the process with status 0"),
    "is_killed": (Status.CRASH, "crashed (SIGKILL)"),
    "hangs": (Status.HANG, "no answer within 4 s"),
    "chatters": (Status.PASS, ""),
    "lies": (Status.FAIL, "the worker gave no proper answer: an answer about 'another'"),
    "has_no_cache": (Status.PASS, ""),
    "family.a": (Status.PASS, ""),
    "family.b": (Status.FAIL, "it is b"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_how_checks_end(results: dict[str, Result], name: str) -> None:
    status, reason = EXPECTED[name]
    assert results[name].status is status
    assert results[name].reason.startswith(reason)
    assert bool(results[name].reason) == bool(reason)


def test_every_misbehaving_check_is_expected(results: dict[str, Result]) -> None:
    assert set(results) == {*EXPECTED, LOAD, CLIENT, "devices.platform"}


def test_what_died_had_last_words(results: dict[str, Result]) -> None:
    assert "Check failed: everything" in results["aborts"].reason


def test_the_report_knows_the_plugin(report: Report) -> None:
    assert not report.passed
    assert report.plugin["name"] == "cpu"
    assert report.plugin["platform_name"] == "cpu"
    assert report.plugin["extensions"]["FFI"] > 24
    assert report.counts[Status.CRASH] == 4


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of the worker processes."""
    started = []

    class Counted(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self.pid)

    monkeypatch.setattr(process.subprocess, "Popen", Counted)
    return started


def test_one_process_runs_what_lets_it_live(counted: list[int]) -> None:
    checked(CPU, "misbehaving.passes", "misbehaving.fails", "misbehaving.family")
    assert len(counted) == 1
    counted.clear()
    checked(CPU, "misbehaving.aborts", "misbehaving.chatters", "misbehaving.is_killed")
    assert len(counted) == 3


def test_no_process_is_left(counted: list[int]) -> None:
    def interrupt(result: Result) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(CPU, selected(suite(), ["abi.load"]), progress=interrupt)
    for pid in counted:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("dies_at_the_end", Status.CRASH, "crashed (SIGABRT)"),
        ("stays_at_the_end", Status.HANG, "did not end within 4 s"),
    ],
)
def test_a_process_that_does_not_end_well(name: str, status: Status, reason: str) -> None:
    report = checked(CPU, f"misbehaving.{name}", limit=4)
    assert [result.status for result in report.results[:-1]] == [Status.PASS] * 3
    end = report.results[-1]
    assert (end.name, end.group, end.status) == (END, "lifecycle", status)
    assert end.reason.startswith(reason)


def test_progress_is_told_as_it_comes() -> None:
    seen: list[Result] = []
    checks = selected(suite(CPU.modules), ["misbehaving.passes", "misbehaving.fails"])
    report = run(CPU, checks, progress=seen.append)
    assert seen == report.results


def statuses(report: Report) -> dict[str, Status]:
    return {result.name: result.status for result in report.results}


PATTERNS = ("abi", "extensions", "lifecycle.reopen", "data.put_get.int8")


@pytest.mark.parametrize("code", [5, 9, 14])
def test_a_plugin_without_its_device(tmp_path: Path, code: int) -> None:
    subject = Subject(f"mine:{compiled(tmp_path, 'mine', code=code)}")
    report = checked(subject, *PATTERNS)
    found = statuses(report)
    defects = [result for result in report.results if result.status.defect]
    assert not defects
    assert report.passed
    assert found[LOAD] is Status.PASS
    assert found["abi.slots"] is Status.PASS
    assert found["abi.small_struct.Buffer_Device"] is Status.ABSENT
    assert found["extensions.walk"] is Status.PASS
    for name in (CLIENT, "lifecycle.reopen", "data.put_get.int8"):
        assert found[name] is Status.ABSENT
    reason = report.results[-1].reason
    assert "no such device is in this machine" in reason
    assert "PJRT_Client_Create" in reason
    assert report.plugin["api_version"] == [0, 81]


def test_a_plugin_that_cannot_make_a_client(tmp_path: Path) -> None:
    report = checked(Subject(f"mine:{compiled(tmp_path, 'mine', code=13)}"), *PATTERNS)
    found = statuses(report)
    assert not report.passed
    assert found[CLIENT] is Status.FAIL
    assert found["data.put_get.int8"] is Status.NOT_RUN
    assert found["extensions.walk"] is Status.PASS
    assert report.results[-1].reason.startswith("lifecycle.client: Internal")


@pytest.mark.parametrize(
    ("where", "statement", "status"),
    [
        ("load", "abort()", Status.CRASH),
        ("initialize", "abort()", Status.CRASH),
        ("initialize", "sleep(600)", Status.HANG),
    ],
)
def test_a_plugin_that_does_not_load(
    tmp_path: Path, where: str, statement: str, status: Status
) -> None:
    library = compiled(tmp_path, "mine", **{where: statement})  # type: ignore[arg-type]
    report = checked(Subject(f"mine:{library}"), *PATTERNS, limit=4)
    found = statuses(report)
    assert found.pop(LOAD) is status
    assert set(found.values()) == {Status.NOT_RUN}
    assert not report.passed


def test_a_library_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "mine.so").write_bytes(b"\x7fELF")
    report = checked(Subject(f"mine:{tmp_path / 'mine.so'}"), *PATTERNS)
    assert report.results[0].status is Status.FAIL
    assert report.results[0].reason.startswith("PluginLoadError")
