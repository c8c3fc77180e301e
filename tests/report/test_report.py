"""Reports as JSON, and what making one imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings

from pjrt_bridge.report import wording
from pjrt_bridge.report.data import Exchange, GraphReport, SegmentReport
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.report.report import Report
from tests.report import reports


def from_json(content: dict[str, Any]) -> Report:
    def segment(data: dict[str, Any]) -> SegmentReport:
        reasons = tuple(FallbackReason(**found) for found in data["fallback_reasons"])
        made = {
            "fallback_reasons": reasons,
            "reads": tuple(data["reads"]),
            "exchanges": tuple(Exchange(**found) for found in data["exchanges"]),
        }
        return SegmentReport(**{**data, **made})

    graphs = tuple(
        GraphReport(**{**data, "segments": tuple(map(segment, data["segments"]))})
        for data in content["graphs"]
    )
    return Report(
        content["program"],
        graphs,
        tuple(content["breaks"]),
        content["first_seconds"],
        content["call_seconds"],
        outside=content["outside"],
    )


@settings(max_examples=50)
@given(reports.reports())
def test_json_holds_all_of_it(report: Report) -> None:
    content = json.loads(report.to_json())
    assert from_json(content) == report
    assert content["advice"] == list(report.advice)
    assert content["bytes_shared"] == report.bytes_shared
    assert content["bytes_copied"] == report.bytes_copied


@pytest.mark.parametrize("kind", [Counter, MappingProxyType, dict])
def test_json_takes_operators_in_any_mapping(kind: Callable[[dict[str, int]], Any]) -> None:
    segment = SegmentReport("device", kind({"aten.mm.default": 3}))
    report = Report("model", (GraphReport("g", "inference", "cpu", (segment,)),))
    content = json.loads(report.to_json())
    assert content["graphs"][0]["segments"][0]["operators"] == {"aten.mm.default": 3}


def test_making_a_report_needs_no_rich() -> None:
    program = (
        "import sys, types; from pathlib import Path\n"
        "package = types.ModuleType('pjrt_bridge'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['pjrt_bridge'] = package\n"
        "import pjrt_bridge.report.report\n"
        "assert 'rich' not in sys.modules, 'rich was imported'\n"
    )
    package = Path(wording.__file__).parent.parent
    subprocess.run([sys.executable, "-c", program, str(package)], check=True, timeout=60)
