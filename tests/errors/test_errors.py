"""Where eager raises the compiled call raises, and nowhere else, or the file says why."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator

import pytest

from tests.errors import expectations
from tests.errors.calls import all_cases
from tests.errors.case import Case
from tests.errors.exceptions import EXCEPTIONS
from tests.errors.sweep import Sweep
from tests.sweeping.command import differences

EXPECTED = expectations.load()

_PART = 48
"""One case in so many belongs to the part that is always run."""

ALWAYS = [case for case in EXPECTED if zlib.crc32(str(case).encode()) % _PART == 0]
ENTRIES = sorted({case.entry for case in EXPECTED})


@pytest.fixture(scope="module")
def worker() -> Iterator[Sweep]:
    with Sweep() as found:
        yield found


def test_the_file_has_only_cases_of_the_database() -> None:
    every = set(all_cases())
    assert set(EXPECTED) <= every
    assert {case for case in every if case.kind != "dtypes"} <= set(EXPECTED)


@pytest.mark.parametrize("case", ALWAYS, ids=str)
def test_a_part(worker: Sweep, case: Case) -> None:
    assert not differences([worker.run(case)], EXPECTED)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("entry", ENTRIES)
def test_all(worker: Sweep, entry: str) -> None:
    keys = [case for case in EXPECTED if case.entry == entry]
    assert not differences([worker.run(case) for case in keys], EXPECTED)


def test_the_file_reads_as_it_is_written() -> None:
    text = expectations.FILE.read_text()
    assert expectations.dump(EXPECTED, text.split()[2].rstrip(";")) == text


def test_outcomes_have_a_meaning_and_exceptions_a_reason() -> None:
    words = {word for found in expectations.counts(EXPECTED).values() for word in found}
    assert words <= set(expectations.MEANINGS)
    accepted = {case for case, outcome in EXPECTED.items() if "accepted" in outcome.split()}
    assert accepted == set(EXCEPTIONS)


FAULTY = """
from pjrt_bridge.torch_interop.placement import refusals
from tests.errors import worker

refusals.error_of_trial = lambda call: None
worker.main()
"""


@pytest.mark.slow
def test_what_is_accepted_although_eager_refuses_is_found() -> None:
    with Sweep([sys.executable, "-c", FAULTY]) as faulty:
        wrong = faulty.run(Case("mm", "dtypes"))
        right = faulty.run(Case("sin", "dtypes"))
    assert any("nothing, eager raises" in problem for problem in wrong.problems)
    assert right.problems == ()
