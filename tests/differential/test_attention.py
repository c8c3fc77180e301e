"""Attention that models write out, joined to one operator, agrees with eager mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pjrt_bridge_cpu.aten.attention import AtenAttention
from tests.differential.attention import Found, generate

SEED = 1
"""Of what `make test` runs; other seeds are for the command line."""


def _run(seed: int, count: int) -> Found:
    found = Found()
    for index in range(count):
        found.add(seed, index)
    return found


@pytest.mark.parametrize("count", [6, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.timeout(1200)
def test_attention_agrees_with_eager_mode(count: int) -> None:
    found = _run(SEED, count)
    assert not "\n".join(found.failures)
    assert not found.raised
    assert found.joined >= count * 0.3


def test_another_scale_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = AtenAttention.attention

    def attention(self: Any, b: Any, query: Any, key: Any, value: Any, mask: Any, how: Any) -> Any:
        return own(self, b, query, key, value, mask, replace(how, scale=1.1 * (how.scale or 1)))

    monkeypatch.setattr(AtenAttention, "attention", attention)
    found = Found()
    for index in range(1, 20, 2):
        found.add(SEED, index, shrinking=5)
        if found.failures:
            break
    (failure,) = found.failures
    assert ": gradient: " in failure
    assert "check(f, arguments" in failure


def test_a_program_follows_from_seed_and_index() -> None:
    sources = [generate(2, number).source() for number in range(20)]
    assert sources == [generate(2, number).source() for number in range(20)]
    assert len(set(sources)) == 20
