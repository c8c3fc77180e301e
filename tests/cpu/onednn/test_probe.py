from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pjrt_bridge import registry
from pjrt_bridge_cpu.onednn import probe
from pjrt_bridge_cpu.onednn.kinds import kinds
from pjrt_bridge_cpu.onednn.probe import Finding, finding

PRODUCT = "bfloat16_product"
CONVOLUTION = "bfloat16_dense_convolution_2d"


@pytest.fixture
def fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MODULE", "tests.cpu.onednn.fatal")


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no process here")

    monkeypatch.setattr(subprocess, "run", refuse)


def test_a_kind_is_right_measured_and_kept_for_the_next_process(
    library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = finding(library, PRODUCT)
    assert found.reason in ("", f"it is not {probe.GAIN} times faster")
    assert [size for size, _ in found.ratios] == sorted(size for size, _ in found.ratios)
    assert found.size is None or found.size in dict(found.ratios)
    assert all(ratio > 0 for _, ratio in found.ratios)
    monkeypatch.setattr(probe, "_known", {})
    monkeypatch.setattr(subprocess, "run", None)
    assert finding(library, PRODUCT) == found
    assert [path.parent.name for path in tmp_path.rglob("*.blob")] == ["onednn"]


@pytest.mark.usefixtures("fatal")
def test_a_process_that_dies_rules_the_kind_out_for_good(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = finding(library, CONVOLUTION)
    assert found.size is None
    assert found.reason.startswith("its process ended with status -")
    monkeypatch.setattr(probe, "_known", {})
    monkeypatch.setattr(subprocess, "run", None)
    assert finding(library, CONVOLUTION) == found


@pytest.mark.usefixtures("fatal")
def test_wrong_numbers_rule_the_kind_out(library: Path) -> None:
    found = finding(library, PRODUCT)
    assert found == Finding(None, found.reason)
    assert found.reason.startswith("its numbers are not XLA's, for bf16[33,70]")


@pytest.mark.usefixtures("fatal")
def test_a_process_that_hangs_is_ended_and_tried_again_another_time(library: Path) -> None:
    found, final = probe.probe(library, "float32_dense_convolution_2d", seconds=3)
    assert found == Finding(None, "its process did not end within 3 s")
    assert not final


@pytest.mark.usefixtures("no_process")
def test_where_no_process_can_be_started_nothing_is_used_and_nothing_kept(
    library: Path, tmp_path: Path
) -> None:
    assert finding(library, PRODUCT) == Finding(
        None, "no process could be started: no process here"
    )
    assert not list(tmp_path.rglob("*.blob"))


def test_what_cannot_be_read_is_found_out_again(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Finding(7, "", ((7, 0.5),))
    monkeypatch.setattr(probe, "probe", lambda *args: (known, True))
    cache = probe._cache()
    assert cache is not None
    for blob in (b"", b"{", b"[]", b'{"size": "7", "ratios": []}', b'{"size": -1, "ratios": []}'):
        cache.put(probe._key(library, PRODUCT), blob)
        monkeypatch.setattr(probe, "_known", {})
        assert finding(library, PRODUCT) == known


def test_without_a_cache_a_process_finds_out_for_itself(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def probed(library: Path, kind: str) -> tuple[Finding, bool]:
        asked.append(kind)
        return Finding(5), True

    monkeypatch.setenv("PJRT_BRIDGE_CACHE", "off")
    monkeypatch.setattr(probe, "probe", probed)
    assert finding(library, PRODUCT) == finding(library, PRODUCT) == Finding(5)
    assert asked == [PRODUCT]


@pytest.mark.usefixtures("fatal", "fresh")
def test_after_a_crash_the_portable_lowering_computes(written: Counter[str]) -> None:
    layer = torch.nn.Conv2d(64, 64, 3, padding=1).bfloat16()
    x = torch.randn(2, 64, 32, 32).bfloat16()
    compiled = torch.compile(layer, backend="pjrt", options={"fallback": "error"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))
    assert not written


def test_small_computations_ask_nobody(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "finding", None)
    assert not probe.pays(library, PRODUCT, 1000)
    assert not probe.pays(library, "float16_product", 10**9)


def test_the_least_size_decides(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "finding", lambda *args: Finding(10**7))
    assert not probe.pays(library, PRODUCT, 10**7 - 1)
    assert probe.pays(library, PRODUCT, 10**7)
    monkeypatch.setattr(probe, "finding", lambda *args: Finding(None, "it died"))
    assert not probe.pays(library, PRODUCT, 10**12)


@pytest.mark.parametrize(
    ("ratios", "size"),
    [
        ((0.9, 0.7, 0.6, 0.5), 2),
        ((0.5, 0.9, 0.6, 0.5), 3),
        ((0.5, 0.5, 0.5, 0.9), None),
        ((0.9, 0.9, 0.9, 0.5), None),
        ((0.5, 0.5, 0.5, 0.5), 1),
    ],
)
def test_the_last_rungs_decide_and_one_alone_does_not(
    ratios: tuple[float, ...], size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = kinds()[CONVOLUTION]
    given = iter(ratios)
    monkeypatch.setattr(probe, "ratio", lambda client, case: next(given))
    monkeypatch.setattr(probe, "_is_busy", lambda: True)
    ladder = [replace(case, size=index) for index, case in enumerate(kind.ladder, 1)]
    found = probe.judge(registry.client("cpu"), replace(kind, checks=(), ladder=tuple(ladder)))
    assert found.size == size
    assert found.doubtful == (size is None)


def test_what_was_too_slow_on_a_busy_machine_is_tried_again_when_it_is_not(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [Finding(None, "too slow", ((7, 1.0),), doubtful=True), Finding(7, "", ((7, 0.5),))]
    monkeypatch.setattr(probe, "probe", lambda *args: (answers.pop(0), True))
    doubted = finding(library, PRODUCT)
    assert doubted.size is None
    for busy, size in ((True, None), (False, 7), (True, 7), (False, 7)):
        monkeypatch.setattr(probe, "_known", {})
        monkeypatch.setattr(probe, "_is_busy", lambda busy=busy: busy)
        assert finding(library, PRODUCT).size == size
    assert not answers
