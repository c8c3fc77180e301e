"""PyTorch's kernels are on, nothing is known of them, and what calls are written is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pjrt_bridge import registry
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge_cpu.aten import (
    VARIABLE,
    attention,
    convolution,
    probe,
    products,
    reductions,
    rows,
    rules,
    tables,
)
from pjrt_bridge_cpu.aten.calls import Call


@pytest.fixture
def library() -> Path:
    found = registry.load("cpu").library
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, "on")
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(tmp_path))
    monkeypatch.setattr(probe, "_known", {})


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every use is allowed, worth a call from one element on, and cut into parts of one each."""
    monkeypatch.setattr(rules, "_PART", 0)
    monkeypatch.setattr(probe, "is_usable", lambda library, use: True)
    for module in (attention, convolution, products, reductions, rows, tables):
        monkeypatch.setattr(module, "LEAST", 1)
    monkeypatch.setattr(products, "NARROWEST", 1)
    monkeypatch.setattr(products, "ROWS", 1 << 62)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many calls were written, by operator."""
    counts: Counter[str] = Counter()
    _note(monkeypatch, lambda call: counts.update([str(call.operator).removeprefix("aten::")]))
    return counts


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The calls that were written, in their order."""
    found: list[Call] = []
    _note(monkeypatch, found.append)
    return found


def _note(monkeypatch: pytest.MonkeyPatch, note: Callable[[Call], object]) -> None:
    emit = rules.emit

    def noting(b: Builder, call: Call) -> tuple[Value, ...]:
        note(call)
        return emit(b, call)

    monkeypatch.setattr(rules, "emit", noting)
