"""The probe: processes that die, hang or are wrong rule uses out, and nothing else."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from pjrt_bridge.runtime.compile.cache import Cache
from pjrt_bridge_cpu.aten import probe
from pjrt_bridge_cpu.aten.checks import checks
from pjrt_bridge_cpu.aten.probe import Probed
from pjrt_bridge_cpu.aten.trial import Trial
from tests.cpu.aten.comparing import compare

MM = "aten::mm.out float32"
SOFTMAX = "aten::_softmax.out bfloat16"
SORT = "aten::sort.values_stable int64"


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MODULE", "tests.cpu.aten.variants")


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no process here")

    monkeypatch.setattr(subprocess, "run", refuse)


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
    monkeypatch.setattr(probe, "_known", {})


@pytest.mark.slow
def test_all_uses_are_tried_and_right_here(library: Path) -> None:
    probed = probe.probe(library)
    assert probed.final
    assert set(probed.findings) == {use for check in checks() for use in Trial(check).uses}
    assert not [reason for reason in probed.findings.values() if reason]


@pytest.mark.slow
@pytest.mark.usefixtures("variants")
def test_a_check_that_ends_its_process_rules_its_use_out_and_no_other(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AT_KILLED", "aten._softmax.default of bfloat16")
    monkeypatch.setenv("AT_WRONG", "aten.sort.default of int64")
    found = probe.findings(library)
    killed = "aten._softmax.default of bfloat16[37, 150] ended its process with status -9"
    wrong = {use: reason for use, reason in found.items() if reason}
    assert wrong == {SOFTMAX: killed, SORT: "its numbers are not PyTorch's"}
    assert len(found) > 20
    forget(monkeypatch)
    monkeypatch.setattr(subprocess, "run", None)
    assert probe.findings(library) == found


@pytest.mark.slow
@pytest.mark.usefixtures("variants")
def test_one_that_hangs_is_ended_and_tried_again_another_time(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AT_HANGING", "aten.bmm.default")
    probed = probe.probe(library, seconds=12)
    assert probed == Probed({MM: ""}, False)


@pytest.mark.slow
@pytest.mark.usefixtures("variants")
def test_one_that_raises_is_not_used_and_tried_again_another_time(
    library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AT_RAISING", "aten.bmm.default")
    assert probe.findings(library) == {MM: ""}
    assert not probe.is_usable(library, "aten::bmm.out float32")
    assert not list(tmp_path.rglob("*.blob"))


@pytest.mark.usefixtures("no_process")
def test_where_no_process_can_be_started_nothing_is_used_and_nothing_kept(
    library: Path, tmp_path: Path
) -> None:
    assert not probe.is_usable(library, MM)
    assert probe.findings(library) == {}
    assert not list(tmp_path.rglob("*.blob"))


def test_findings_are_kept_for_the_next_process(
    library: Path, asked: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for _ in range(2):
        assert probe.is_usable(library, MM)
        assert not probe.is_usable(library, SOFTMAX)
        assert not probe.is_usable(library, "aten::bmm.out float32")
        forget(monkeypatch)
    assert asked == [library]
    assert [path.parent.name for path in tmp_path.rglob("*.blob")] == ["aten"]


@pytest.mark.parametrize("blob", [b"", b"{", b"[]", b"7", b"\xff", b'{"x": 1}', b'{"x": null}'])
def test_what_cannot_be_read_is_found_out_again(
    blob: bytes, library: Path, asked: list[Path], tmp_path: Path
) -> None:
    Cache(tmp_path / "aten", 1 << 20).put(probe._key(library), blob)
    assert probe.is_usable(library, MM)
    assert asked == [library]


def test_without_a_cache_each_process_finds_out_once(
    library: Path, asked: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", "off")
    assert probe.is_usable(library, MM)
    assert probe.is_usable(library, MM)
    forget(monkeypatch)
    assert probe.is_usable(library, MM)
    assert asked == [library, library]


def test_findings_are_of_one_build_and_one_machine(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [probe._key(library)]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_onednn=true")
    keys.append(probe._key(library))
    monkeypatch.setattr(probe, "processor", lambda: "another one")
    keys.append(probe._key(library))
    monkeypatch.setattr(probe.torch_library, "library", lambda: None)
    keys.append(probe._key(library))
    assert len(set(keys)) == 4


def test_output_between_the_lines_and_of_one_that_died_is_read() -> None:
    lines = [
        b"a warning",
        json.dumps({"index": 0, "check": "a", "uses": ["x"]}).encode(),
        json.dumps({"index": 0, "check": "a", "uses": ["x"], "reason": "wrong"}).encode(),
        json.dumps({"index": 1, "check": "b", "uses": ["x", "y"]}).encode(),
        json.dumps({"index": 1, "check": "b", "uses": ["x", "y"], "reason": ""}).encode(),
        json.dumps({"index": 2, "check": "c", "uses": ["z"]}).encode(),
        b'{"index": 2, "che',
    ]
    found: dict[str, str] = {}
    begun = probe._take(found, b"\n".join(lines))
    assert found == {"x": "wrong", "y": ""}
    assert begun == {"index": 2, "check": "c", "uses": ["z"]}


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
