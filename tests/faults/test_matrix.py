"""Every operation under every fault: an exception that says what failed, or the right result."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import pytest

from tests.faults import matrix
from tests.faults.case import NOT_HERE, Case
from tests.sweeping.worker import Worker, run

_PART = 7
"""One case in so many belongs to the part that is always run."""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker[Case]]:
    with matrix.start() as found:
        yield found


ALWAYS = (
    "client/use_once",
    "donate/aliased",
    "execute/several_devices",
    "put/shared",
    "torch/warm parts c host",
    "torch/warm whole c host",
)


@pytest.mark.parametrize("operation", ALWAYS)
def test_a_part(worker: Worker[Case], operation: str) -> None:
    recorded = worker.run(Case(operation, "", "record"))
    cases = matrix.cases(matrix.calls([recorded]))
    part = [case for case in cases if zlib.crc32(str(case).encode()) % _PART == 0]
    assert part
    assert not [result for case in part if (result := worker.run(case)).problems]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_whole_matrix() -> None:
    jobs = os.cpu_count() or 1
    recorded, cases = matrix.record(jobs)
    results = list(run(matrix.start, cases, jobs))
    print(matrix.table(results))
    assert not [result for result in (*recorded, *results) if result.problems]
    functions = {case.function for case in cases if case.kind != "cut"}
    assert len(functions) >= 60
    for function in functions:
        assert len({case.kind for case in cases if case.function == function}) >= 2
    several = [
        function
        for function in functions
        if len({case.kind for case in cases if case.function == function}) >= 4
    ]
    assert len(several) >= 60


def test_a_part_over_another_plugin() -> None:
    with matrix.start(plugin="reference") as worker:
        recorded = [
            worker.run(Case(operation, "", "record"))
            for operation in ("execute/call", "put/copied", "put/shared")
        ]
        assert [one.outcome.startswith(NOT_HERE) for one in recorded] == [False, False, True]
        assert "DataError" in recorded[-1].outcome
        cases = matrix.cases(matrix.calls(recorded[:2]))
        part = [case for case in cases if zlib.crc32(str(case).encode()) % (3 * _PART) == 0]
        assert part
        assert not [result for case in part if (result := worker.run(case)).problems]
