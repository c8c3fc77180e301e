"""Modules, optimizers and functions of torch's databases go as in eager, or it is said why not."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator

import pytest

from tests.databases.case import Case
from tests.databases.exceptions import EXCEPTIONS
from tests.databases.sweep import Sweep, all_cases

EVERY = list(all_cases())

_PART = 150
"""One case in so many belongs to the part that is always run."""

ALWAYS = [case for case in EVERY if zlib.crc32(str(case).encode()) % _PART == 0]
GROUPS = sorted({(case.database, case.entry) for case in EVERY})


@pytest.fixture(scope="module")
def worker() -> Iterator[Sweep]:
    with Sweep() as found:
        yield found


@pytest.mark.parametrize("case", ALWAYS, ids=str)
def test_a_part(worker: Sweep, case: Case) -> None:
    _assert_right(worker, case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_all(worker: Sweep, group: tuple[str, str]) -> None:
    for case in EVERY:
        if (case.database, case.entry) == group:
            _assert_right(worker, case)


def _assert_right(worker: Sweep, case: Case) -> None:
    result = worker.run(case)
    assert bool(result.problems) == (case in EXCEPTIONS), (case, result.problems)
    assert result.outcome or result.problems


def test_exceptions_are_cases() -> None:
    assert set(EXCEPTIONS) <= set(EVERY)


FAULTY = """
from pjrt_bridge.torch_interop.lowering import registry
from tests.databases import worker

registry.names()
registry._LOWERINGS["aten.tanh.default"] = registry._LOWERINGS["aten.cos.default"]
worker.main()
"""


@pytest.mark.slow
def test_a_wrong_lowering_is_found() -> None:
    with Sweep([sys.executable, "-c", FAULTY]) as faulty:
        for way in ("compiled", "device", "device-compiled"):
            found = faulty.run(Case("modules", "nn.Tanh", "float32 train contiguous", way))
            assert any("not close" in problem for problem in found.problems)
        assert not faulty.run(
            Case("modules", "nn.ReLU", "float32 train contiguous", "compiled")
        ).problems
