"""The suite on the reference plugin: no defects, and what it lacks it says in a clean way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pjrt_bridge_conformance import Report, Status, run, suite
from pjrt_bridge_conformance.context import Subject
from pjrt_bridge_conformance.suite import selected


def checked(patterns: Sequence[str]) -> Report:
    report = run(Subject("reference"), selected(suite(), patterns), limit=60)
    defects = {one.name: one.reason for one in report.results if one.status.defect}
    assert defects == {}
    assert set(report.counts) <= {Status.PASS, Status.UNSUPPORTED}
    return report


def test_what_is_quick() -> None:
    groups = ("abi", "extensions", "devices", "data", "donation", "layouts", "collectives")
    report = checked(groups)
    assert report.counts[Status.PASS] > 400


@pytest.mark.slow
def test_all() -> None:
    report = checked(())
    assert len(report.results) == len(suite())
    assert report.counts[Status.PASS] > 1050
