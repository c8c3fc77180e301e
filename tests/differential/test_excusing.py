"""What PyTorch's own compiler excuses."""

from __future__ import annotations

from tests.differential.comparing import Difference
from tests.differential.excusing import Excused, asks, excused
from tests.differential.observing import Call
from tests.differential.oracles import PARTITIONED

VALUE = Difference("value", 0, "result", "1, not 2")
STRIDES = Difference("strides", 0, "result", "(1, 2), not (2, 1)")
EXCEPTION = Difference("exception", 0, "call", "RuntimeError: no")
RAISED = Call(error=RuntimeError("no"), error_in="call")


def said(
    wrong: list[Difference],
    theirs: list[Difference],
    call: Call | None = None,
    found: Call | None = None,
) -> Excused:
    return excused("aot_eager", wrong, theirs, [call or Call()], [found or Call()])


def test_what_the_oracle_does_right_is_the_backends_own() -> None:
    assert said([VALUE, STRIDES], [VALUE, STRIDES]) == Excused([VALUE, STRIDES], [], [])


def test_layouts_are_excused_and_values_are_not() -> None:
    found = said([VALUE, STRIDES], [])
    assert (found.own, found.torches) == ([], [STRIDES])
    (shared,) = found.shared
    assert (shared.key, shared.severity) == (VALUE.key, "shared")


def test_what_a_caller_makes_of_an_excused_layout_is_excused() -> None:
    used = Difference("value", 0, "result after use", "1, not 2")
    assert said([STRIDES, used], []) == Excused([], [], [STRIDES, used])


def test_an_oracle_that_raises_says_nothing_of_values() -> None:
    assert said([VALUE], [Difference("missing exception", 0, "call", "")], RAISED).own == [VALUE]


def test_where_both_raise_arguments_are_as_far_as_each_had_come() -> None:
    found = said([EXCEPTION, VALUE], [], RAISED, RAISED)
    assert (found.own, found.shared, found.torches) == ([], [], [EXCEPTION, VALUE])


def test_who_is_asked() -> None:
    assert not asks("aot_eager", [])
    assert asks("aot_eager", [VALUE])
    assert not asks(PARTITIONED, [VALUE, EXCEPTION])
    assert asks(PARTITIONED, [EXCEPTION])
    assert not asks("promised", [VALUE])
    assert asks("promised", [VALUE, STRIDES])


def test_what_follows_from_an_excused_use_is_excused() -> None:
    use = Difference("missing exception", 0, "result weighted", "'', not 'RuntimeError'")
    assert said([use, VALUE], []) == Excused([], [], [use, VALUE])
