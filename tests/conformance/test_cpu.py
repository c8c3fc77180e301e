"""The suite on the CPU plugin: no defects, and nothing unsupported that is not known to be."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from pjrt_bridge_conformance import Report, Status, run, suite
from pjrt_bridge_conformance.context import Subject
from pjrt_bridge_conformance.suite import selected

UNSUPPORTED = (
    # The chain of the plugin has four extensions.
    "extensions.link.*",
    "extensions.profile",
    # The one for phases comes without a compiler.
    "extensions.phase_names",
    # It came with Layouts of 80 bytes.
    "extensions.parameter_layouts",
    # It leaves out the code.
    "serialization.written_again",
    # Types that came after API 0.81.
    "*.float6_*",
    # UNIMPLEMENTED by the plugin.
    "devices.memory_stats",
    "devices.topology_bogus",
    "executables.memory_kinds",
    "collectives.collective_broadcast",
    "collectives.own_number.partition_id",
    # There is no compiler behind its topology.
    "devices.topology_serialized",
    "devices.compiled_for_topology",
    # Not even with constant padding.
    "numerics.run_time_shapes.dynamic_conv",
)


def checked(*patterns: str) -> Report:
    checks = suite()
    report = run(Subject("cpu"), selected(checks, patterns), limit=60)
    defects = {one.name: one.reason for one in report.results if one.status.defect}
    assert defects == {}
    assert report.passed
    for result in report.results:
        if result.status is not Status.PASS:
            assert result.status is Status.UNSUPPORTED
            assert any(fnmatchcase(result.name, pattern) for pattern in UNSUPPORTED), result
    return report


def test_all_but_numerics() -> None:
    groups = {check.group for check in suite().values()} - {"numerics"}
    report = checked(*sorted(groups))
    assert len(report.results) > 500


def test_some_numerics() -> None:
    report = checked("numerics.add", "numerics.gather", "numerics.batch_norm_grad")
    assert len(report.results) > 20


@pytest.mark.slow
def test_all() -> None:
    report = checked()
    assert len(report.results) == len(suite())
    supported = report.counts[Status.PASS]
    assert supported > 1100
    for pattern in UNSUPPORTED:
        assert any(fnmatchcase(one.name, pattern) for one in report.results), pattern
