from __future__ import annotations

from typing import Any

import pytest

from pjrt_bridge import registry
from pjrt_bridge.errors import BridgeWarning
from pjrt_bridge.registry import brought
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import Reduction
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.emit.lookup import lookup
from pjrt_bridge.torch_interop.lowering import registry as portable
from pjrt_bridge.torch_interop.lowering.context import FLOAT32, Context


class Doubling(Kernels):
    """Gives twice what a reduction gives."""

    def reduce(self, b: Builder, reduction: Reduction, x: Value, dims: Any) -> Value:
        result = super().reduce(b, reduction, x, dims)
        return b.add(result, result)


@pytest.fixture(autouse=True)
def _brought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "lowerings", lambda client: {"aten.amax.default": biggest})
    monkeypatch.setattr(brought, "kernels", lambda client: Doubling())


def biggest(c: Context, x: Value, *args: Any) -> Value:
    return c.reduce("max", x, (0,))


def doublings(client: Client, name: str, *args: Any) -> int:
    """How many sums of two the program of an operator on three numbers has."""
    builder = Builder([TensorType((3,), FLOAT32)])
    found = lookup(client)(name)
    assert found is not None
    context = Context(builder, [TensorType((), FLOAT32)])
    result = found(context, builder.parameters[0], *args)
    assert isinstance(result, Value)
    return builder.finish([result]).text.count("stablehlo.add %")


def test_portable_lowerings_compute_with_the_kernels_of_the_plugin(client: Client) -> None:
    assert doublings(client, "aten.amin.default", [0]) == 1
    assert lookup(client)("aten.no.such") is None


def test_a_brought_lowering_is_asked_first_and_has_the_kernels_too(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doublings(client, "aten.amax.default", [0]) == 1
    monkeypatch.setattr(brought, "kernels", lambda client: None)
    assert lookup(client)("aten.amax.default") is biggest


def test_without_kernels_the_portable_lowering_is_given_as_it_is(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brought, "kernels", lambda client: None)
    name = "aten.amin.default"
    assert lookup(client)(name) is portable.find_lowering(name)


def test_what_is_no_kernels_is_named_and_not_used(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brought, "kernels", lambda client: 7)
    with pytest.warns(BridgeWarning, match="are not used: found 7, expected a Kernels"):
        found = lookup(client)
    assert found("aten.amin.default") is portable.find_lowering("aten.amin.default")


def test_a_brought_lowering_without_an_overload_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = {"aten.amax": biggest, "higher_order.cond": biggest}
    monkeypatch.setattr(registry, "lowerings", lambda client: brought)
    with pytest.warns(BridgeWarning, match="'aten.amax' for plugin 'cpu' is never used") as said:
        lookup(client)
    assert len(said) == 1
