"""Nothing is known of PyTorch's kernels before a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pjrt_bridge import registry
from pjrt_bridge.runtime import Client
from pjrt_bridge_cpu.aten import (
    attention,
    convolution,
    findings,
    products,
    rows,
    rules,
    transforms,
)
from pjrt_bridge_cpu.aten.library import connect
from tests import configuration
from tests.cpu.aten.frames import attributes_of
from tests.cpu.aten.native_calls import X, product


@pytest.fixture(scope="module")
def connected(client: Client) -> None:
    """PyTorch's kernels are known to the plugin."""
    assert connect(client) == ""


@pytest.fixture(scope="module")
def attributes() -> dict[str, Any]:
    """Of a custom call of a product."""
    return attributes_of(product, [X, X])


@pytest.fixture
def library() -> Path:
    found = registry.load("cpu").library
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a test finds out is kept in a folder of its own, beside its programs."""
    monkeypatch.setenv(configuration.CACHE, str(tmp_path))
    monkeypatch.setattr(findings, "_known", {})
    monkeypatch.setattr(findings, "_gains", {})
    monkeypatch.setattr(findings, "_trials", {})


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every use is allowed, worth a call from one element on, and cut into parts of one each."""
    monkeypatch.setattr(rules, "_PART", 0)
    monkeypatch.setattr(findings, "is_usable", lambda library, use: True)
    for module in (attention, convolution, products, rows, transforms):
        monkeypatch.setattr(module, "LEAST", 1)
    monkeypatch.setattr(products, "NARROWEST", 1)
    monkeypatch.setattr(products, "ROWS", 1 << 62)
