from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge_cpu import small_convolutions
from pjrt_bridge_cpu.aten import rules
from pjrt_bridge_cpu.aten.calls import KernelCall
from tests.dynamo import skip_guard_timing
from tests.fresh import fresh as fresh
from tests.fresh import same_numbers as same_numbers

skip_guard_timing()


@pytest.fixture
def convolved_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No convolution is so small that the plugin's package has a kernel for it."""
    monkeypatch.setattr(small_convolutions, "MOST", 0)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many calls were written, by operator."""
    counts: Counter[str] = Counter()
    _note(monkeypatch, lambda call: counts.update([str(call.operator).removeprefix("aten::")]))
    return counts


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[KernelCall]:
    """The calls that were written, in their order."""
    found: list[KernelCall] = []
    _note(monkeypatch, found.append)
    return found


def _note(monkeypatch: pytest.MonkeyPatch, note: Callable[[KernelCall], object]) -> None:
    emit = rules.emit

    def noting(b: Builder, call: KernelCall) -> tuple[Value, ...]:
        note(call)
        return emit(b, call)

    monkeypatch.setattr(rules, "emit", noting)
