"""The wide sweep's file is true, as far as it goes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from tests.opinfo import cases, expectations, wide
from tests.opinfo.case import Case
from tests.opinfo.sweep import WideSweep
from tests.sweeping.command import differences

EXPECTED = wide.load()

_PART = 300
"""One case in so many belongs to the part that is always run."""

ALWAYS = [case for case in EXPECTED if zlib.crc32(str(case).encode()) % _PART == 0]
ENTRIES = sorted({case.entry for case in EXPECTED})


@pytest.fixture(scope="module")
def worker() -> Iterator[WideSweep]:
    with WideSweep(wide.SAMPLES) as found:
        yield found


def test_the_file_has_only_cases_of_the_database() -> None:
    assert set(EXPECTED) <= set(cases.all_cases(wide=True))


@pytest.mark.parametrize("case", ALWAYS, ids=str)
def test_a_part(worker: WideSweep, case: Case) -> None:
    assert not differences([worker.run(case)], EXPECTED)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("entry", ENTRIES)
def test_all(worker: WideSweep, entry: str) -> None:
    keys = [case for case in EXPECTED if case.entry == entry]
    assert not differences([worker.run(case) for case in keys], EXPECTED)


def test_the_file_reads_as_it_is_written() -> None:
    text = wide.FILE.read_text()
    assert wide.dump(EXPECTED, text.split()[2].rstrip(";")) == text


def test_samples_are_counted_beside_the_outcome() -> None:
    outcome = "device & host aten.view.default & samples 12"
    assert wide.samples(outcome) == 12
    assert wide.without_samples(outcome) == "device & host aten.view.default"
    assert wide.samples("unsampled") == 0


@pytest.mark.parametrize("count", [3, 10, 1000])
def test_samples_are_as_many_as_there_are_or_as_were_asked_for(count: int) -> None:
    case = Case("add", "float16", "forward")
    cases.prepare()
    found = cases.wide_samples(cases.entries()["add"], case, count)
    assert len(found) == count or 10 < len(found) < count
    assert all(tensor.is_floating_point() for tensor in found[0].tensors())


def test_operators_on_lists_are_among_the_cases() -> None:
    names = {case.entry for case in cases.all_cases(wide=True)}
    assert {"_foreach_add", "_foreach_norm", "_foreach_addcdiv"} <= names
    assert not any(case.entry.startswith("_foreach") for case in cases.all_cases(wide=False))


def test_the_last_word_of_a_case_tells_type_and_direction() -> None:
    case = Case("add", "float16", "backward")
    assert expectations.mark(case) == "float16'"
    assert expectations.case("add", "float16'") == case
