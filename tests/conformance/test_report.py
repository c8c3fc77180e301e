from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt_bridge.errors import OptionError
from pjrt_bridge_conformance import Report, Result, Status, compare

NAMES = st.sampled_from(["a.b", "a.c", "b.a.x", "b.a.y"])
RESULTS = st.builds(
    Result,
    name=NAMES,
    group=st.just("a"),
    status=st.sampled_from(Status),
    reason=st.text(max_size=10),
    seconds=st.floats(0, 100),
)
REPORTS = st.builds(
    Report,
    plugin=st.just({"name": "mine", "api_version": [0, 81]}),
    results=st.lists(RESULTS, unique_by=lambda result: result.name),
    seconds=st.integers(0, 100).map(float),
    versions=st.just({"pjrt-bridge": "1.2"}),
)


@given(REPORTS)
def test_reports_survive_json(report: Report) -> None:
    assert Report.from_json(report.to_json(), where="here") == report


@given(REPORTS)
def test_a_report_does_not_differ_from_itself(report: Report) -> None:
    assert compare(report, report) == []


OPPOSITE = {"new": "gone", "gone": "new", "better": "worse", "changed": "changed"}


@given(REPORTS, REPORTS)
def test_what_got_worse_one_way_got_no_worse_the_other_way(first: Report, second: Report) -> None:
    there = {one.name: one.kind for one in compare(first, second)}
    back = {one.name: one.kind for one in compare(second, first)}
    assert set(there) == set(back)
    for name, kind in there.items():
        if kind == "worse":
            assert back[name] in ("better", "changed")
        else:
            assert back[name] == OPPOSITE[kind] or (kind, back[name]) == ("changed", "worse")


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (Status.PASS, Status.FAIL, "worse"),
        (Status.PASS, Status.CRASH, "worse"),
        (Status.PASS, Status.UNSUPPORTED, "worse"),
        (Status.UNSUPPORTED, Status.FAIL, "worse"),
        (Status.FAIL, Status.HANG, "worse"),
        (Status.CRASH, Status.HANG, "changed"),
        (Status.FAIL, Status.PASS, "better"),
        (Status.UNSUPPORTED, Status.PASS, "better"),
        (Status.PASS, Status.ABSENT, "changed"),
        (Status.ABSENT, Status.FAIL, "worse"),
        (Status.NOT_RUN, Status.PASS, "changed"),
        (Status.NOT_RUN, Status.CRASH, "worse"),
        (Status.FAIL, Status.ABSENT, "changed"),
    ],
)
def test_kinds_of_differences(before: Status, after: Status, kind: str) -> None:
    reports = [Report({}, [Result("a.b", "a", status, "", 1.0)]) for status in (before, after)]
    (found,) = compare(*reports)
    assert (found.name, found.kind) == ("a.b", kind)


def test_the_worst_comes_first() -> None:
    def report(**statuses: Status) -> Report:
        return Report({}, [Result(name, "a", status, "", 0) for name, status in statuses.items()])

    found = compare(
        report(one=Status.FAIL, two=Status.PASS, old=Status.PASS),
        report(one=Status.PASS, two=Status.FAIL, new=Status.PASS),
    )
    assert [(one.name, one.kind) for one in found] == [
        ("two", "worse"),
        ("new", "new"),
        ("old", "gone"),
        ("one", "better"),
    ]


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    with pytest.raises(OptionError, match=r"report\.json: cannot be read"):
        Report.read(file)
    good = json.loads(Report({"name": "mine"}, [], 1.0).to_json())
    wrong = [
        "",
        "[]",
        "{}",
        json.dumps({**good, "format": 99}),
        json.dumps({**good, "checks": [{"name": "a"}]}),
        json.dumps({**good, "checks": 3}),
    ]
    for text in wrong:
        file.write_text(text)
        with pytest.raises(OptionError, match=r"report\.json: no report of conformance checks"):
            Report.read(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="cannot be read"):
        Report.read(file)


def test_counts_and_verdict() -> None:
    def report(*statuses: Status) -> Report:
        return Report({}, [Result(str(n), "a", status, "", 0) for n, status in enumerate(statuses)])

    good = report(Status.PASS, Status.PASS, Status.UNSUPPORTED, Status.ABSENT)
    assert good.counts == {Status.PASS: 2, Status.UNSUPPORTED: 1, Status.ABSENT: 1}
    assert good.passed
    for status in (Status.FAIL, Status.CRASH, Status.HANG):
        assert not report(Status.PASS, status).passed
