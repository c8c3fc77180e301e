"""What is known of uses: kept, shipped, or found out before or beside the first program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from pjrt_bridge.runtime.compile.cache import Cache
from pjrt_bridge.torch_interop import explain
from pjrt_bridge.torch_interop.ledger import LEDGER
from pjrt_bridge_cpu.aten import findings, gains, outcomes, probe
from pjrt_bridge_cpu.aten.probe import Findings, Probed
from tests.cpu.aten.comparing import compare

MM = "aten::mm.out float32"
SOFTMAX = "aten::_softmax.out bfloat16"


@pytest.fixture(autouse=True)
def _nothing_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "entries", dict)
    monkeypatch.setattr(gains, "entries", dict)
    monkeypatch.setenv("PJRT_BRIDGE_BACKGROUND", "off")


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no process here")

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Who asked for a probe, which finds that only products are right."""
    libraries: list[Path] = []

    def probed(library: Path) -> Probed:
        libraries.append(library)
        return Probed({MM: "", SOFTMAX: "it is wrong"}, True)

    monkeypatch.setattr(probe, "probe", probed)
    return libraries


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the next process begins."""
    monkeypatch.setattr(findings, "_known", {})
    monkeypatch.setattr(findings, "_gains", {})
    monkeypatch.setattr(findings, "_trials", {})


# -- before the first program ----------------------------------------------------------------------


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("background", ["off", "on"])
def test_where_no_process_can_be_started_nothing_is_used_and_nothing_kept(
    background: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_BACKGROUND", background)
    assert not findings.is_usable(library, MM)
    assert findings.findings(library) == {}
    assert not list((tmp_path / "aten").glob("*.entry"))


def test_findings_are_kept_for_the_next_process(
    library: Path, asked: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for _ in range(2):
        assert findings.is_usable(library, MM)
        assert not findings.is_usable(library, SOFTMAX)
        assert not findings.is_usable(library, "aten::bmm.out float32")
        forget(monkeypatch)
    assert asked == [library]
    assert [path.parent.name for path in tmp_path.rglob("*.entry")] == ["aten"]


@pytest.mark.parametrize("blob", [b"", b"{", b"[]", b"7", b"\xff", b'{"x": 1}', b'{"x": null}'])
def test_what_cannot_be_read_is_found_out_again(
    blob: bytes, library: Path, asked: list[Path], tmp_path: Path
) -> None:
    Cache(tmp_path / "aten", 1 << 20).put(findings._key(library), blob)
    assert findings.is_usable(library, MM)
    assert asked == [library]


def test_without_a_cache_each_process_finds_out_once(
    library: Path, asked: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", "off")
    assert findings.is_usable(library, MM)
    assert findings.is_usable(library, MM)
    forget(monkeypatch)
    assert findings.is_usable(library, MM)
    assert asked == [library, library]


def test_findings_are_of_one_build_and_one_machine(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [findings._key(library)]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_onednn=true")
    keys.append(findings._key(library))
    monkeypatch.setattr(findings, "processor", lambda: "another one")
    keys.append(findings._key(library))
    monkeypatch.setattr(findings.torch_library, "library", lambda: None)
    keys.append(findings._key(library))
    assert len(set(keys)) == 4


@pytest.mark.usefixtures("fresh", "asked")
def test_what_was_found_wrong_is_lowered_the_portable_way(written: Counter[str]) -> None:
    x = torch.randn(64, 300).bfloat16()
    compare(lambda x: x.softmax(1), x)
    assert not written
    y = torch.randn(300, 300)
    compare(lambda x, y: x @ y.mT, x.float(), y)
    assert set(written) == {"mm.out"}


def test_what_is_off_is_not_asked_for(
    asked: list[Path], written: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_ATEN", "off")
    torch.compiler.reset()
    compare(lambda x, y: x @ y.mT, torch.randn(64, 300), torch.randn(300, 300))
    assert not written
    assert not asked


# -- what calls gain -------------------------------------------------------------------------------

GAINS = {"topk float32": {4096: 0.5, 64000: 1.8}}


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[Findings]:
    """What was right when somebody had it measured."""
    asked: list[Findings] = []

    def measure(library: Path, uses: Findings) -> gains.Ratios:
        asked.append(uses)
        return GAINS

    monkeypatch.setattr(findings, "_measure", measure)
    monkeypatch.setenv("PJRT_BRIDGE_ATEN", "on")
    return asked


@pytest.mark.usefixtures("asked")
def test_what_is_right_is_measured_once_and_kept(
    library: Path, times: list[Findings], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert findings.measured(library) == GAINS
        forget(monkeypatch)
    assert times == [{MM: "", SOFTMAX: "it is wrong"}]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("current", [True, False])
def test_what_is_shipped_without_some_kinds_is_measured_again(
    library: Path, times: list[Findings], monkeypatch: pytest.MonkeyPatch, current: bool
) -> None:
    older = {"topk float32": {4096: 3.0}}
    shipped = gains.Shipped(older, gains.FORMAT if current else "0")
    monkeypatch.setattr(gains, "shipped", lambda _: shipped)
    assert findings.measured(library) == (older if current else GAINS)
    assert bool(times) is not current


@pytest.mark.usefixtures("fresh")
def test_what_is_shipped_without_some_kinds_serves_meanwhile(
    library: Path, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = {"topk float32": {4096: 3.0}}
    monkeypatch.setattr(gains, "shipped", lambda _: gains.Shipped(older, "0"))
    monkeypatch.setenv("PJRT_BRIDGE_ATEN", "on")
    assert findings.measured(library) == older
    go.touch()
    end = time.monotonic() + 120
    while time.monotonic() < end and findings.measured(library) == older:
        time.sleep(0.02)
    assert findings.measured(library) == {"topk float32": {4096: 0.5}}


@pytest.mark.usefixtures("asked", "times")
def test_calls_are_made_whatever_they_gain(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_ATEN", "always")
    assert findings.measured(library) == {}


@pytest.mark.usefixtures("asked")
def test_where_measuring_fails_nothing_is_kept(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_ATEN", "on")
    command = [sys.executable, "-S", "-c", "print('no ratios')"]
    monkeypatch.setattr(findings.child_processes, "command", lambda *args: command)
    assert findings.measured(library) == {}
    assert len(list((tmp_path / "aten").glob("*.entry"))) == 1


@pytest.mark.usefixtures("fresh", "times")
def test_programs_hold_the_calls_that_pay(
    written: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "is_usable", lambda library, use: True)
    for rows, called in ((5, True), (64, False)):
        compare(lambda x: x.topk(9), torch.randperm(rows * 1000).view(rows, 1000).float())
        assert bool(written["topk.values"]) == called
        written.clear()


# -- in the background -----------------------------------------------------------------------------

# What `python -m pjrt_bridge_cpu.aten.findings` is, with a probe that a file lets go on.
SLOW = """
import pathlib, sys, time
from pjrt_bridge_cpu.aten import findings, outcomes, probe

outcomes.entries = dict

def slow(library):
    while not pathlib.Path({go!r}).exists():
        time.sleep(0.02)
    return probe.Probed({{{use!r}: ""}}, True)

probe.probe = slow
findings._measure = lambda library, uses: {{"topk float32": {{4096: 0.5}}}}
findings.main(sys.argv[1:])
"""


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file for which the trials in the background wait."""
    monkeypatch.delenv("PJRT_BRIDGE_BACKGROUND")
    path = tmp_path / "go"
    script = SLOW.format(go=str(path), use=MM)

    def command(module: str, *arguments: str) -> list[str]:
        assert module == findings.MODULE
        return [sys.executable, "-P", "-c", script, *arguments]

    monkeypatch.setattr(findings.child_processes, "command", command)
    return path


def wait_for(library: Path, use: str) -> bool:
    end = time.monotonic() + 120
    while time.monotonic() < end and not findings.is_usable(library, use):
        time.sleep(0.02)
    return findings.is_usable(library, use)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("cache", ["folder", "off"])
def test_programs_are_the_plugins_own_until_the_trial_is_over(
    cache: str,
    library: Path,
    go: Path,
    written: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if cache == "off":
        monkeypatch.setenv("PJRT_BRIDGE_CACHE", cache)
    x, y = torch.randn(64, 300), torch.randn(300, 300)
    compare(lambda x, y: x @ y.mT, x, y)
    assert not written
    go.touch()
    assert wait_for(library, MM)
    torch.compiler.reset()
    compare(lambda x, y: x @ y.mT, x, y)
    assert set(written) == {"mm.out"}
    monkeypatch.setenv("PJRT_BRIDGE_ATEN", "on")
    end = time.monotonic() + 120
    while time.monotonic() < end and not findings.measured(library):
        time.sleep(0.02)
    assert findings.measured(library) == {"topk float32": {4096: 0.5}}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("trains", [False, True])
def test_programs_from_before_call_the_kernels_when_the_trial_is_over(
    trains: bool, library: Path, go: Path, written: Counter[str]
) -> None:
    layer = torch.nn.Linear(300, 300, bias=False).requires_grad_(trains)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(300 * 300).reshape(300, 300) % 7 - 3)
    x = torch.ones(64, 300)
    compiled = torch.compile(layer, backend="pjrt")
    results = [compiled(x) for _ in range(5)]
    assert not written
    go.touch()
    end = time.monotonic() + 120
    while time.monotonic() < end and not _renewed():
        time.sleep(0.02)
    assert set(written) == {"mm.out"}
    results += [compiled(x) for _ in range(5)]
    for result in results:
        assert torch.equal(result, layer(x))
        if trains:
            result.sum().backward()
    report = explain(compiled, x)
    (graph,) = (graph for graph in report.graphs if graph.kind != "backward")
    assert graph.segments[0].renewed == 1
    assert "renewed with faster kernels" in str(report)


def _renewed() -> int:
    return sum(segment.renewed for record in LEDGER.graphs for segment in record.segments)


def test_two_processes_try_once(
    library: Path, go: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials = [findings.BackgroundTrial(library) for _ in range(2)]
    go.touch()
    for trial in trials:
        trial._process.wait(120)
    end = time.monotonic() + 20
    while time.monotonic() < end and not all(trial.found for trial in trials):
        time.sleep(0.02)
    assert [trial.found for trial in trials] == [{MM: ""}] * 2
    # One entry of what is right, and one of what it gains.
    assert len(list((tmp_path / "aten").glob("*.entry"))) == 2


ENDS = """
import sys
from pathlib import Path
from pjrt_bridge_cpu.aten import findings, outcomes
outcomes.entries = dict
trial = [sys.executable, "-P", "-c", {slow!r}]
findings.child_processes.command = lambda module, *rest: [*trial, *rest]
print(findings.findings(Path(sys.argv[1])), findings._trials[Path(sys.argv[1])]._process.pid)
"""


@pytest.mark.parametrize("cache", ["folder", "off"])
def test_the_trial_goes_on_after_the_program_where_its_outcome_can_be_kept(
    cache: str, library: Path, tmp_path: Path
) -> None:
    path = tmp_path / "go"
    script = ENDS.format(slow=SLOW.format(go=str(path), use=MM))
    variables = {"PJRT_BRIDGE_BACKGROUND": "on"}
    variables |= {"PJRT_BRIDGE_CACHE": "off"} if cache == "off" else {}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(library)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown, pid = done.stdout.rsplit(maxsplit=1)
    assert shown == "{}"
    assert Path("/proc", pid).exists() is (cache == "folder")
    path.touch()
    if cache == "folder":
        end = time.monotonic() + 120
        while time.monotonic() < end and not findings._kept(library):
            time.sleep(0.02)
        assert findings._kept(library) == {MM: ""}
