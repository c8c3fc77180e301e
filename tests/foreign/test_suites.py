"""The suites that a plugin has to pass, with each build of others as the plugin `cpu`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from pjrt_bridge_cpu.builds import Build
from tests.foreign.building import OTHERS, needed, run

pytestmark = [*needed, pytest.mark.timeout(7200)]

EACH = pytest.mark.parametrize("build", OTHERS, ids=lambda build: build.name)

KNOWN: Mapping[str, Mapping[str, str]] = {
    "fastatomstruct-xla-cpu": {},
    "lammps-jax-pjrt-cpu": {
        "numerics.to_float32.float6_e2m3fn": "Failed to translate module to LLVM IR",
        "numerics.to_float32.float6_e3m2fn": "Failed to translate module to LLVM IR",
    },
}
"""Defects of each build, by check of the conformance suite; all of them are clean errors."""


@EACH
def test_conformance(build: Build, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = ("-m", "pjrt_bridge", "conformance", "cpu", "--json", str(report))
    run(build, *command, "-o", "cpu_device_count=4", timeout=3000)
    results = json.loads(report.read_text())["checks"]
    assert len(results) > 1000
    defects = {
        result["name"]: f"{result['status']}: {result['reason']}"
        for result in results
        if result["status"] in ("fail", "crash", "hang")
    }
    known = KNOWN[build.name]
    assert defects.keys() == known.keys()
    for name, reason in defects.items():
        assert reason.startswith("fail: ")
        assert known[name] in reason


@EACH
def test_models(build: Build) -> None:
    done = run(build, "-m", "tests.models", timeout=7000)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@EACH
def test_every_operation_under_every_fault(build: Build) -> None:
    done = run(build, "-m", "tests.faults", timeout=7000)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@EACH
def test_what_is_known_of_the_platform(build: Build) -> None:
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "tests/cpu")
    done = run(build, *command, timeout=3000)
    assert done.returncode == 0, done.stdout[-6000:]
