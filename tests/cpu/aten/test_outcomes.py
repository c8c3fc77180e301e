"""Outcomes that are shipped: for what they hold, and that they are what is found here."""

from __future__ import annotations

import atexit
import subprocess
from pathlib import Path

import pytest

from pjrt_bridge_cpu.aten import findings, outcomes, probe
from pjrt_bridge_cpu.aten.checks import checks
from pjrt_bridge_cpu.aten.trial import UseTrial


@pytest.fixture
def entry(library: Path) -> probe.Findings:
    found = outcomes.shipped(library)
    if found is None or not outcomes.is_of_all_uses(found):
        pytest.skip(f"nothing is shipped of all uses for {outcomes.key_of(library)}")
    return found


def test_every_entry_is_of_uses_that_are_tried() -> None:
    uses = {use for check in checks() for use in UseTrial(check).uses}
    assert outcomes.entries()
    for found in outcomes.entries().values():
        assert set(found) <= uses
        assert outcomes.is_of_all_uses(found) == (set(found) == uses)


def test_an_entry_of_fewer_uses_holds_until_the_trial_has_ended(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_BACKGROUND", "on")
    monkeypatch.setattr(outcomes, "shipped", lambda library: {"aten::mm.out float32": ""})
    monkeypatch.setattr(findings.BackgroundTrial, "_wait", lambda self: None)
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: None)
    monkeypatch.setattr(atexit, "register", lambda function: function)
    assert findings.is_usable(library, "aten::mm.out float32")
    assert not findings.is_usable(library, "aten::bmm.out float32")
    findings._trials[library].found = {"aten::bmm.out float32": ""}
    assert findings.is_usable(library, "aten::bmm.out float32")
    assert not findings.is_usable(library, "aten::mm.out float32")


def test_a_known_build_needs_no_trial(
    library: Path, entry: probe.Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "BackgroundTrial", None)
    monkeypatch.setattr(probe, "probe", None)
    assert findings.findings(library) == entry
    assert findings.is_usable(library, "aten::mm.out float32")


@pytest.mark.usefixtures("entry")
@pytest.mark.parametrize("what", ["plugin", "torch", "instructions", "flags"])
def test_another_build_processor_or_flag_is_not_known(
    what: str, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    match what:
        case "plugin":
            monkeypatch.setattr(outcomes, "library_hash", lambda path: "another")
        case "torch":
            monkeypatch.setattr(outcomes, "_torch_build", lambda: "2.99.0 abc")
        case "instructions":
            monkeypatch.setattr(outcomes, "instructions", lambda: "x86_64 sse2")
        case "flags":
            monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_onednn=true")
    assert outcomes.shipped(library) is None


def test_a_damaged_file_ships_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "outcomes.json").write_text("[{")
    monkeypatch.setattr(outcomes, "FILE", tmp_path / "outcomes.json")
    assert outcomes.entries.__wrapped__() == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("entry")
def test_what_is_shipped_for_this_machine_is_what_is_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert outcomes.main([]) == 0, capsys.readouterr().out
