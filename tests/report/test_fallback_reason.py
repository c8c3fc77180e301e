"""What is told of reasons for the host."""

from __future__ import annotations

import pytest

from pjrt_bridge.report.fallback_reason import FallbackReason, ReasonKind, UnintendedFallback


def fallback_reason(
    operator: str, reason: str = "no lowering", kind: ReasonKind = "unsupported"
) -> FallbackReason:
    return FallbackReason(operator, reason, kind)


@pytest.mark.parametrize("kind", ["requested", "small", "slow"])
def test_what_was_asked_for_is_not_told(kind: ReasonKind) -> None:
    assert UnintendedFallback.among([fallback_reason("add", kind=kind)]) is None
    found = UnintendedFallback.among(
        [fallback_reason("add", kind=kind), fallback_reason("sub", kind="data")]
    )
    assert found == UnintendedFallback(1, "sub: no lowering")


def test_a_few_that_differ_are_shown() -> None:
    found = UnintendedFallback.among([fallback_reason(name) for name in "aabcaed"])
    assert found is not None
    assert found.shown == "a: no lowering; b: no lowering; c: no lowering; and 2 more"
    assert found.affected("the graph", "operator") == "7 operators of the graph"


def test_what_they_concern() -> None:
    one = UnintendedFallback.among([fallback_reason("add")])
    whole = UnintendedFallback.among([fallback_reason("", "it failed on the device", "failed")])
    assert one is not None
    assert whole is not None
    assert one.affected("the graph", "operation") == "1 operation of the graph"
    assert whole.affected("the graph", "operation") == "the graph"
    assert whole.shown == "it failed on the device"
