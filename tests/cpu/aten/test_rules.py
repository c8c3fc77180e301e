"""Who lowers what: rules where they may, and otherwise what was there before."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import pjrt_bridge
from pjrt_bridge import dtypes
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.emit.lookup import lookup
from pjrt_bridge.torch_interop.lowering import registry
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import NoLowering
from pjrt_bridge_cpu import pjrt_bridge_lowerings
from pjrt_bridge_cpu.aten import library, rules
from pjrt_bridge_cpu.aten.kernels import CpuKernels
from pjrt_bridge_cpu.aten.operators import MM
from pjrt_bridge_cpu.aten.rules import UsableKernels, grain, lowerings, use_name
from pjrt_bridge_cpu.kernels import XlaKernels

FLOAT32 = dtypes.of("float32")


def context() -> Context:
    return Context(Builder([TensorType((4,), FLOAT32)]), [TensorType((4,), FLOAT32)])


def test_a_rule_that_gives_nothing_leaves_it_to_the_portable_lowering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use, asked = UsableKernels(lambda name: True), []

    def rule(c: Context, use: UsableKernels, x: Any, *, wanted: bool) -> Any:
        asked.append(wanted)
        return x if wanted else None

    c = context()
    (x,) = c.b.parameters
    assert registry.find_lowering("aten.relu.default")  # They are loaded when one is asked for.
    monkeypatch.setitem(registry._LOWERINGS, "aten.relu.default", lambda c, x, *, wanted: "other")
    names = ("aten.neg.default", "aten.relu.default", "user.op.default")
    table = lowerings(dict.fromkeys(names, rule), use)
    assert all(lowering(c, x, wanted=True) is x for lowering in table.values())
    assert table["aten.relu.default"](c, x, wanted=False) == "other"
    with pytest.raises(NoLowering, match=r"user\.op\.default has no portable lowering"):
        table["user.op.default"](c, x, wanted=False)
    assert asked == [True, True, True, False, False]


@pytest.mark.usefixtures("always")
def test_what_is_stated_otherwise_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "is_stated_so", lambda operator: False)
    assert UsableKernels(lambda name: True)(context().b, call_of_mm(), FLOAT32) is None


def call_of_mm() -> Any:
    return type("Call", (), {"operator": MM})()


def test_uses_are_named_after_operator_and_element_type() -> None:
    call = call_of_mm()
    assert use_name(call, FLOAT32) == "aten::mm.out float32"
    asked: list[str] = []
    assert (
        UsableKernels(lambda name: asked.append(name) is not None)(context().b, call, FLOAT32)
        is None
    )
    assert asked == ["aten::mm.out float32"]


@pytest.mark.parametrize(
    ("work", "length", "least"),
    [(0, 10, 10), (1 << 19, 10, 10), (1 << 21, 10, 2), (1 << 30, 10, 1), (1 << 40, 0, 1)],
)
def test_parts_are_worth_a_thread(work: int, length: int, least: int) -> None:
    assert min(grain(work, length), 100_000) == least


def test_kernels_and_lowerings_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    client = pjrt_bridge.client("cpu")
    assert type(kernels_of(client)) is CpuKernels
    monkeypatch.setattr(library, "_handler", lambda: "not here")
    assert type(kernels_of(client)) is XlaKernels
    assert pjrt_bridge_lowerings(client.plugin, client) is None


def test_other_plugins_get_no_calls(written: Counter[str]) -> None:
    client = pjrt_bridge.client("reference")
    assert type(kernels_of(client)) is Kernels
    assert pjrt_bridge_lowerings(client.plugin, client) is None
    assert lookup(client)("aten._softmax.default") is not None
    assert not written


def test_the_variable_rules_calls_out(monkeypatch: pytest.MonkeyPatch) -> None:
    client = pjrt_bridge.client("cpu")
    for value in ("off", "OFF ", "0", "no", "false"):
        monkeypatch.setenv("PJRT_BRIDGE_ATEN", value)
        assert type(kernels_of(client)) is XlaKernels
    monkeypatch.setenv("PJRT_BRIDGE_ATEN", "")
    assert type(kernels_of(client)) is CpuKernels
