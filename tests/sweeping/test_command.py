"""What counts as the expected outcome of a case."""

from __future__ import annotations

import pytest

from tests.opinfo.case import Case
from tests.sweeping.command import differences, settled
from tests.sweeping.worker import Result

CASE = Case("add", "float32", "forward")


def found(outcome: str, *problems: str) -> Result[Case]:
    return Result(CASE, outcome, problems, 0.1)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("device", "device ~rounded"),
        ("device ~rounded", "device"),
        ("device & device ~rounded", "device"),
        ("device ~rounded & host aten.add.Tensor", "device & host aten.add.Tensor"),
    ],
)
def test_what_a_processor_rounds_is_no_difference(outcome: str, expected: str) -> None:
    assert not differences([found(outcome)], {CASE: expected})


@pytest.mark.parametrize("outcome", ["host aten.add.Tensor", "device ~ties", "device & host x", ""])
def test_all_else_is_one(outcome: str) -> None:
    line = f"add float32 forward: {outcome}, expected device"
    assert differences([found(outcome)], {CASE: "device"}) == [line]


def test_a_case_that_nobody_expects_is_one() -> None:
    assert differences([found("device")], {}) == ["add float32 forward: device, expected None"]


def test_wrong_numbers_are_one_whatever_the_outcome() -> None:
    result = found("device ~rounded", "sample 0: not close")
    assert differences([result], {CASE: "device"}) == ["add float32 forward: sample 0: not close"]


def test_order_of_outcomes_is_kept() -> None:
    assert settled("host x & device ~rounded & device") == "host x & device"
