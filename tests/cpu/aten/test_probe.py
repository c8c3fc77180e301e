"""The probe: processes that die, hang or are wrong rule uses out, and nothing else."""

from __future__ import annotations

import json
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from pjrt_bridge_cpu.aten import probe
from pjrt_bridge_cpu.aten.checks import checks
from pjrt_bridge_cpu.aten.probe import Probed
from pjrt_bridge_cpu.aten.trial import UseTrial

BMM = "aten.bmm.default"
SOFTMAX = "aten::_softmax.out bfloat16"
TOPK = "aten::topk.values int64"


def tried_before(name: str) -> dict[str, str]:
    """What is found before the first check of an operator.

    The uses that compute a product depend on the processor.
    """
    earlier = takewhile(lambda check: name not in str(check), checks())
    found = {use: "" for check in earlier for use in UseTrial(check).uses}
    assert found
    return found


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MODULE", "tests.cpu.aten.variants")


@pytest.mark.slow
def test_all_uses_are_tried_and_right_here(library: Path) -> None:
    probed = probe.probe(library)
    assert probed.final
    assert set(probed.findings) == {use for check in checks() for use in UseTrial(check).uses}
    assert not [reason for reason in probed.findings.values() if reason]


@pytest.mark.slow
@pytest.mark.usefixtures("variants")
def test_a_check_that_ends_its_process_rules_its_use_out_and_no_other(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AT_KILLED", "aten._softmax.default of bfloat16")
    monkeypatch.setenv("AT_WRONG", "aten.topk.default of int64")
    found = probe.probe(library).findings
    killed = "aten._softmax.default of bfloat16[37, 150] ended its process with status -9"
    wrong = {use: reason for use, reason in found.items() if reason}
    assert wrong == {SOFTMAX: killed, TOPK: "its numbers are not PyTorch's"}
    assert len(found) > 20


@pytest.mark.slow
@pytest.mark.usefixtures("variants")
def test_one_that_hangs_is_ended_and_tried_again_another_time(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AT_HANGING", BMM)
    probed = probe.probe(library, seconds=12)
    assert probed == Probed(tried_before(BMM), False)


WRITING = """
import time
for at in range(6):
    print(at, flush=True)
    time.sleep({pause})
"""


@pytest.mark.parametrize(("pause", "status"), [(1.2, 0), (600, None)])
def test_one_that_goes_on_may_take_its_time(pause: float, status: int | None) -> None:
    command = [sys.executable, "-S", "-c", WRITING.format(pause=pause)]
    lines, found = probe._run(command, seconds=5)
    assert (len(lines), found) == ((6, 0) if status == 0 else (1, None))


@pytest.mark.slow
@pytest.mark.usefixtures("variants")
def test_one_that_raises_is_not_used_and_tried_again_another_time(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AT_RAISING", BMM)
    assert probe.probe(library) == Probed(tried_before(BMM), False)


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
    begun = probe._take(found, lines)
    assert found == {"x": "wrong", "y": ""}
    assert begun == {"index": 2, "check": "c", "uses": ["z"]}
