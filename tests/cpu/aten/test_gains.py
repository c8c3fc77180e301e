"""Ratios between, before and behind the sizes that were measured, and what is shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge_cpu.aten import gains, loads, outcomes
from pjrt_bridge_cpu.aten.calls import Load
from pjrt_bridge_cpu.aten.rules import UsableKernels

FLOAT32 = dtypes.of("float32")
RATIOS = {"topk float32": {100: 0.25, 10_000: 4.0}}

points = st.dictionaries(st.integers(1, 1 << 40), st.floats(1e-3, 1e3), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 0.25), (100, 0.25), (1000, 1.0), (10_000, 4.0), (1 << 30, 4.0)],
)
def test_ratios_are_powers_between_sizes_and_the_nearest_elsewhere(
    size: int, expected: float
) -> None:
    found = gains.ratio(RATIOS, Load("topk", size), FLOAT32)
    assert found == pytest.approx(expected)


@given(points, st.integers(1, 1 << 41))
def test_no_ratio_is_beyond_what_was_measured(measured: dict[int, float], size: int) -> None:
    found = gains.ratio({"topk float32": measured}, Load("topk", size), FLOAT32)
    assert found is not None
    low, high = min(measured.values()), max(measured.values())
    assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)


@given(st.dictionaries(st.text(), points))
def test_what_is_written_is_read(ratios: dict[str, dict[int, float]]) -> None:
    assert gains.read(gains.written(ratios)) == ratios


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"1": 0}}', '{"a": {"1": null}}', "\xff"],
)
def test_what_is_none_is_not_read(text: str) -> None:
    assert gains.read(text) is None


def test_calls_pay_by_what_was_measured() -> None:
    use = UsableKernels(lambda name: True, lambda: RATIOS)
    assert use.pays(Load("topk", 100), FLOAT32)
    assert not use.pays(Load("topk", 10_000), FLOAT32)
    assert use.pays(None, FLOAT32)
    for unmeasured in (True, False):
        for load, dtype in ((Load("cumsum", 1), FLOAT32), (Load("topk", 1), dtypes.of("int64"))):
            assert use.pays(load, dtype, unmeasured=unmeasured) == unmeasured
            pair = (load, Load("topk", 1))
            assert use.prefers(*pair, dtype, unmeasured=unmeasured) == unmeasured
    small, large = Load("topk", 100), Load("topk", 10_000)
    assert use.prefers(small, large, FLOAT32, unmeasured=False)
    assert not use.prefers(large, small, FLOAT32, unmeasured=True)


def test_what_is_shipped_is_of_known_kinds_and_builds() -> None:
    kinds = {kind for kind, _ in loads.measured()}
    assert gains.entries()
    for key, found in gains.entries().items():
        assert tuple(key[:3]) in outcomes.entries()
        # Where a kind was not measured, the least size of its rule decides.
        assert {name.rpartition(" ")[0] for name in found.ratios} <= kinds


def test_a_damaged_file_ships_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gains.json").write_text("[{")
    monkeypatch.setattr(gains, "FILE", tmp_path / "gains.json")
    assert gains.entries.__wrapped__() == {}


def test_what_is_shipped_replaces_the_entry_of_its_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "gains.json"
    file.write_text("[]")
    monkeypatch.setattr(gains, "FILE", file)
    gains.entries.cache_clear()
    keys = [("plugin", "torch", "avx2", maker) for maker in ("b", "a")]
    for ratios in ({}, RATIOS):
        for key in keys:
            gains.ship(key, ratios)
    assert gains.entries() == {key: gains.Shipped(RATIOS, gains.FORMAT) for key in keys}
    gains.entries.cache_clear()


def test_another_maker_is_not_known(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = gains.key_of(library)
    assert key is not None
    monkeypatch.setattr(gains, "entries", lambda: {key: gains.Shipped(RATIOS)})
    assert gains.shipped(library) == gains.Shipped(RATIOS)
    monkeypatch.setattr(gains, "maker", lambda: "another")
    assert gains.shipped(library) is None
    monkeypatch.undo()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_onednn=true")
    assert gains.shipped(library) is None
