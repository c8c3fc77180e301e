"""`pjrt-bridge conformance` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command, write
from tests.conformance.plugins import compiled

ROOT = Path(__file__).parent.parent.parent
MODULE = "tests.conformance.misbehaving"


def test_a_plugin_that_passes(command: Command) -> None:
    outcome = command("conformance", "cpu", "--only", "abi", "--json", "cpu.json")
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "cpu"
    assert any(line.split() == ["PJRT", "API", "0.81"] for line in lines)
    assert "checks in" in outcome.out
    assert "wrote cpu.json" in outcome.out
    report = json.loads(Path("cpu.json").read_text())
    assert report["format"] == 1
    assert report["plugin"]["name"] == "cpu"
    assert report["counts"] == {"pass": len(report["checks"])}
    first = report["checks"][0]
    assert {*first} == {"name", "group", "status", "reason", "seconds"}
    assert first["name"] == "abi.load"


def test_defects_are_status_1(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    # Checks run in processes of their own, which start where the user is.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    patterns = [f"misbehaving.{name}" for name in ("fails", "aborts", "unsupported", "passes")]
    only = [word for pattern in patterns for word in ("--only", pattern)]
    outcome = command("conformance", "cpu", "--checks", MODULE, *only)
    assert outcome.status == 1
    assert "fail misbehaving.fails: found 1, expected 2" in outcome.out
    assert (
        "crash misbehaving.aborts: crashed (SIGABRT): F0000 Check failed: everything" in outcome.out
    )
    assert "unsupported misbehaving.unsupported: not here" in outcome.out
    assert "3 pass, 1 fail, 1 crash, 1 unsupported" in outcome.out


def test_an_absent_device_is_status_0(command: Command, tmp_path: Path) -> None:
    plugin = f"mine:{compiled(tmp_path, 'mine')}"
    outcome = command("conformance", plugin, "--only", "lifecycle", "--only", "extensions.walk")
    assert outcome.status == 0
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("absent device ")]
    assert line.startswith("absent device lifecycle.client, lifecycle.reopen, ")
    assert "more: NOT_FOUND: no such device is in this machine" in line
    assert outcome.err == ""


def test_a_plugin_that_dies_when_it_is_loaded(command: Command, tmp_path: Path) -> None:
    plugin = f"mine:{compiled(tmp_path, 'mine', load='abort()')}"
    outcome = command("conformance", plugin, "--only", "abi")
    assert outcome.status == 1
    assert "crash abi.load: crashed (SIGABRT)" in outcome.out
    assert "not run" in outcome.out


def test_client_options(command: Command) -> None:
    outcome = command(
        "conformance",
        "cpu",
        "--only",
        "devices.ids",
        "--option",
        "cpu_device_count=3",
        "--json",
        "a",
    )
    assert outcome.status == 0
    assert len(json.loads(Path("a").read_text())["plugin"]["devices"]) == 3


def test_a_pattern_and_a_list(command: Command) -> None:
    outcome = command("conformance", "--list", "--only", "numerics.add")
    assert outcome.status == 0
    assert "numerics.add.float32  The operation add computes" in outcome.out
    wrong = command("conformance", "--list", "--only", "nonsense")
    assert (wrong.status, wrong.out) == (1, "")
    assert wrong.err.startswith("error: --only nonsense: no check has such a name")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "expected the NAME of a plugin"),
        (["nowhere"], 1, "plugin 'nowhere' was not found"),
        (["cpu", "--checks", "nowhere"], 1, "there is no module 'nowhere'"),
        (["--diff", "a", "b"], 1, "a: cannot be read"),
    ],
)
def test_wrong_usage(command: Command, arguments: list[str], status: int, message: str) -> None:
    outcome = command("conformance", *arguments)
    assert outcome.status == status
    assert message in outcome.err


def report(file: str, **statuses: str) -> Path:
    checks = [
        {"name": name, "group": "a", "status": status, "reason": f"why {name}", "seconds": 0.1}
        for name, status in statuses.items()
    ]
    data = {"format": 1, "versions": {}, "plugin": {}, "seconds": 1, "checks": checks}
    return write(file, json.dumps(data))


def test_differences(command: Command) -> None:
    before = report("before", one="pass", two="fail", three="pass", four="pass")
    after = report("after", one="crash", two="pass", three="pass", five="unsupported")
    worse = command("conformance", "--diff", before, after)
    assert worse.status == 1
    assert worse.out.splitlines() == [
        "worse one: pass -> crash: why one",
        "new five: not there -> unsupported: why five",
        "gone four: pass -> not there",
        "better two: fail -> pass: why two",
        "1 worse, 1 new, 1 gone, 1 better",
    ]
    same = command("conformance", "--diff", after, after)
    assert (same.status, same.out) == (0, "no differences\n")
    better = command("conformance", "--diff", report("a", one="fail"), report("b", one="pass"))
    assert better.status == 0


def test_a_missing_suite_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pjrt_bridge.cli.conformance.find_spec", lambda name: None)
    outcome = command("conformance", "cpu")
    assert outcome.status == 2
    assert outcome.err.strip() == (
        "error: the checks are a package of their own, which is not installed; run: "
        "pip install 'pjrt-bridge[conformance]'"
    )
