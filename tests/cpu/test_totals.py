"""Reductions of integers and float64 by the custom call: values, which ones are calls, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import totals
from pjrt_bridge_cpu.kernels import XlaKernels
from pjrt_bridge_cpu.reduced_expressions import HOWS
from pjrt_bridge_cpu.totals import TARGET, total
from tests.cpu.helpers import emitted
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("fresh")
REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min}


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert totals.can_total(client)
    monkeypatch.setattr(totals, "LEAST", 1)


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_they_are_those_of_numpy(client: Client, data: st.DataObject) -> None:
    # Parts of long ones, blocks of rows and of columns, and what is left of each.
    sizes = [data.draw(st.sampled_from(each)) for each in ((1, 3), (1, 70, 1100), (1, 5, 300))]
    if data.draw(st.booleans()):
        sizes = [1, data.draw(st.sampled_from((66_000, 140_001))), data.draw(st.integers(1, 2))]
    dtype = dtypes.of(data.draw(st.sampled_from(("int32", "int64", "float64"))))
    how = data.draw(st.sampled_from(HOWS))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    if dtype.is_float:
        x = rng.standard_normal(sizes)
        if data.draw(st.booleans()):
            x[rng.random(sizes) < 1e-3] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
    else:
        limits = np.iinfo(dtype.numpy)
        # Sums wrap around.
        x = rng.integers(limits.min, limits.max, sizes, dtype.numpy, endpoint=True)
    b = Builder([TensorType(x.shape, dtype)])
    made = total(b, HOWS.index(how), b.parameters[0], sizes[0], sizes[2])
    (found,) = client.compile(b.finish([made]))(x)
    with np.errstate(all="ignore"):
        expected = REDUCTIONS[how](x, axis=1, **({"dtype": x.dtype} if how == "sum" else {}))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12, atol=1e-10)
    if how != "sum" or not dtype.is_float:
        np.testing.assert_array_equal(np.asarray(found), expected)


def test_sums_are_the_same_at_every_position(client: Client) -> None:
    """Results depend on sizes alone, whatever threads there are."""
    x = np.random.default_rng(0).standard_normal((1, 300_000, 1))
    b = Builder([TensorType(x.shape, dtypes.of("float64"))])
    executable = client.compile(b.finish([total(b, 0, b.parameters[0], 1, 1)]))
    first = np.asarray(executable(x)[0])
    assert all(np.asarray(executable(x)[0]) == first for _ in range(20))


def graph(x: torch.Tensor) -> list[torch.Tensor]:
    """Over all dimensions, some that lie side by side, and others."""
    return [
        x.sum(),
        x.sum(-1),
        x.amax(0),
        x.amin((0, 1)),
        x.sum((0, 2)),
        x[:, :1].sum(1),
        (x + 1).sum(2),
        x.permute(2, 0, 1).sum(0),
    ]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float64, torch.int16])
def test_operators_of_pytorch(dtype: torch.dtype) -> None:
    x = torch.randint(-99, 99, (6, 30, 40)).to(dtype)
    found = torch.compile(graph, backend="pjrt")(x)
    torch.testing.assert_close(found, graph(x))
    calls = emitted(lambda *given: graph(*given), x).count(f"@{TARGET}(")
    assert calls >= {torch.int16: 0, torch.int32: 2}.get(dtype, 4)


X, LEFT = TensorType((4, 8, 2), dtypes.of("int64")), TensorType((4, 2), dtypes.of("int64"))
HOW = {"how": np.array([0], np.int64)}
REFUSED: dict[str, tuple[Sequence[TensorType], TensorType, dict[str, Any], str]] = {
    "two operands": ((X, X), LEFT, HOW, "one operand and one result"),
    "no attribute": ((X,), LEFT, {}, "not those that the bridge writes"),
    "another attribute": ((X,), LEFT, {"how": np.array([3])}, "not those that the bridge writes"),
    "another type": ((X,), TensorType((4, 2), dtypes.of("int32")), HOW, "element types"),
    "floats": (
        (TensorType((4, 8, 2), dtypes.of("float32")),),
        TensorType((4, 2), dtypes.of("float32")),
        HOW,
        "element types",
    ),
    "another shape": ((X,), TensorType((2, 4), X.dtype), HOW, "do not fit each other"),
    "another rank": ((X,), TensorType((8,), X.dtype), HOW, "do not fit each other"),
    "no element": ((TensorType((4, 0, 2), X.dtype),), LEFT, HOW, "do not fit each other"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    types, result, config, reason = REFUSED[name]
    b = Builder(types)
    program = b.finish(b.custom_call(TARGET, b.parameters, [result], backend_config=config))
    arrays: list[Any] = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(client.compile(program)(*arrays)[0])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_total
