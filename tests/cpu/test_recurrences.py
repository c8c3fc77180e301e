"""Recurrent layers by the custom calls: values, gradients, calls, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import Recurrence
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.recurrent.operators import NAMESPACE
from pjrt_bridge_cpu import recurrences
from pjrt_bridge_cpu.kernels import XlaKernels
from pjrt_bridge_cpu.recurrences import BACKWARD, FORWARD, KINDS
from tests.cpu.helpers import emitted
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("fresh")

GATES = {"tanh": 1, "relu": 1, "gru": 3, "lstm": 4}


@pytest.fixture(autouse=True)
def _registered(client: Client) -> None:
    assert recurrences.can_recur(client)


Emit = Callable[[XlaKernels, Builder, list[Value], Value | None], Any]


@dataclass(frozen=True)
class Layer:
    """What a layer is given."""

    kind: str
    reverse: bool
    tensors: dict[str, torch.Tensor]
    count: int | None

    @property
    def how(self) -> Recurrence:
        return Recurrence(self.kind, self.reverse)

    @property
    def length(self) -> torch.Tensor | None:
        return None if self.count is None else torch.tensor(self.count)


@st.composite
def layers(draw: st.DrawFn, biased: st.SearchStrategy[bool]) -> Layer:
    kind = draw(st.sampled_from(KINDS))
    steps, batch, size = (draw(st.integers(*limits)) for limits in ((4, 7), (1, 20), (1, 80)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    gates, cells = GATES[kind] * size, size if kind == "lstm" else 0
    shapes = {
        "given": (steps, batch, gates),
        "state": (batch, size),
        "cells": (batch, cells),
        "weight": (gates, size),
        "bias": (gates,),
    }
    if not draw(biased):
        del shapes["bias"]
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    tensors["weight"] /= size**0.5
    count = draw(st.none() | st.integers(0, steps))
    return Layer(kind, draw(st.booleans()), tensors, count)


def run(
    client: Client, layer: Layer, tensors: Sequence[torch.Tensor], emit: Emit
) -> Sequence[np.ndarray[Any, Any]]:
    """What the kernels' program computes of tensors and of the layer's length."""
    own = XlaKernels()
    own.can_recur = True
    arrays = [item.numpy() for item in tensors]
    if layer.count is not None:
        arrays.append(np.array(layer.count))
    b = Builder([TensorType(item.shape, dtypes.of(item.dtype.name)) for item in arrays])
    values = list(b.parameters)
    count = values.pop() if layer.count is not None else None
    made = emit(own, b, values, count)
    assert made is not None
    return [np.asarray(item) for item in client.compile(b.finish(list(made)))(*arrays)]


def assert_same(found: Sequence[np.ndarray[Any, Any]], expected: Sequence[torch.Tensor]) -> None:
    for ours, right in zip(found, expected, strict=True):
        assert ours.shape == tuple(right.shape)
        np.testing.assert_allclose(ours, right.numpy(), rtol=2e-5, atol=2e-5)


def forward(layer: Layer, save: bool) -> Sequence[torch.Tensor]:
    names = ("given", "state", "cells", "weight", "bias")
    arguments = [layer.tensors.get(name) for name in names]
    operator = getattr(torch.ops, NAMESPACE).recurrence
    return operator(*arguments, layer.kind, layer.reverse, save, layer.length)  # type: ignore[no-any-return]


@settings(max_examples=examples(60), deadline=None)
@given(layer=layers(st.booleans()), save=st.booleans())
def test_it_is_the_operator(client: Client, layer: Layer, save: bool) -> None:
    def emit(own: XlaKernels, b: Builder, values: list[Value], count: Value | None) -> Any:
        first, state, cells, weight, *bias = values
        offset = bias[0] if bias else None
        return own.recurrence(b, first, (state, cells), weight, offset, count, layer.how, save=save)

    found = run(client, layer, list(layer.tensors.values()), emit)
    assert_same(found, forward(layer, save))


@settings(max_examples=examples(60), deadline=None)
@given(layer=layers(st.just(False)))
def test_gradients_are_those_of_the_operator(client: Client, layer: Layer) -> None:
    results = forward(layer, True)
    generator = torch.Generator().manual_seed(0)
    of_results = [torch.randn(item.shape, generator=generator) for item in results[:2]]
    others = [layer.tensors[name] for name in ("state", "cells", "weight")]

    def emit(own: XlaKernels, b: Builder, values: list[Value], count: Value | None) -> Any:
        (of_states, of_cells, *made), states, weight = values[:5], values[5:7], values[7]
        return own.recurrence_gradients(
            b,
            (of_states, of_cells),
            (made[0], made[1], made[2]),
            (states[0], states[1]),
            weight,
            count,
            layer.how,
        )

    found = run(client, layer, [*of_results, *results, *others], emit)
    operator = getattr(torch.ops, NAMESPACE).recurrence_backward
    expected = operator(*of_results, *results, *others, layer.kind, layer.reverse, layer.length)
    assert_same(found, expected)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch", [1, 67])
def test_layers_of_pytorch_and_their_gradients(layer: type[nn.RNNBase], batch: int) -> None:
    torch.manual_seed(0)
    model, x = layer(24, 72, 2, bidirectional=True), torch.randn(6, batch, 24)
    found = []
    for function in (model, torch.compile(model, backend="pjrt")):
        model.zero_grad()
        side = x.clone().requires_grad_()
        result, _ = function(side)
        result.square().mean().backward()
        found.append([result.detach(), side.grad, *(item.grad for item in model.parameters())])
    for ours, eager in zip(found[1], found[0], strict=True):
        assert ours is not None
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [2, 9])
def test_large_layers_are_divided_among_threads(batch: int) -> None:
    torch.manual_seed(0)
    model, x = nn.LSTM(32, 400), torch.randn(5, batch, 32)
    found = []
    for function in (model, torch.compile(model, backend="pjrt")):
        result, _ = function(x)
        found.append((result, *torch.autograd.grad(result.sum(), list(model.parameters()))))
    for ours, eager in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_half_precision_is_as_good_as_pytorchs(layer: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    model, x = layer(16, 40), torch.randn(12, 3, 16)
    with torch.no_grad():
        exact, _ = model(x)
        model, x = model.bfloat16(), x.bfloat16()
        assert FORWARD in emitted(model, x)
        found, _ = torch.compile(model, backend="pjrt")(x)
        eager, _ = model(x)
    assert found.dtype == eager.dtype
    assert (found - exact).abs().mean() <= 1.1 * (eager - exact).abs().mean()


def test_nan_stays_where_it_is() -> None:
    model, x = nn.RNN(4, 8, nonlinearity="relu"), torch.randn(5, 5, 4)
    x[1, 2] = float("nan")
    with torch.no_grad():
        expected, _ = model(x)
        found, _ = torch.compile(model, backend="pjrt")(x)
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_which_layers_are_calls() -> None:
    x = torch.randn(6, 5, 4)
    with torch.no_grad():
        assert emitted(nn.LSTM(4, 8, 2), x).count(f"@{FORWARD}") == 2
        assert FORWARD not in emitted(nn.LSTM(4, 8).double(), x.double())
        torch.compiler.reset()
        assert FORWARD not in emitted(nn.LSTM(4, 8), x[:2])


def typed(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(shape, dtypes.of(dtype))


GIVEN, STATE, NONE, WEIGHT, BIAS, COUNT = (
    *(typed(5, 2, 3), typed(2, 3), typed(2, 0), typed(3, 3), typed(3), typed(dtype="int64")),
)
STATES, CELLS = typed(5, 2, 3), typed(5, 2, 0)


def test_programs_for_other_plugins_have_none() -> None:
    b = Builder([GIVEN, STATE, NONE, WEIGHT, STATES, CELLS])
    first, state, cells, weight, states, memory = b.parameters
    how, own = Recurrence("tanh", False), XlaKernels()
    pair, made = (state, cells), (states, memory, memory)
    assert own.recurrence(b, first, pair, weight, None, None, how, save=False) is None
    assert own.recurrence_gradients(b, (states, memory), made, pair, weight, None, how) is None


Refused = tuple[str, Sequence[TensorType], Sequence[TensorType], Sequence[int]]


def refusals() -> Iterator[tuple[str, Refused]]:
    """By what is wrong: target, operands, results, numbers."""
    right, results = (GIVEN, STATE, NONE, WEIGHT, BIAS, COUNT), (STATES, CELLS, CELLS)
    rest = right[2:]
    yield "five operands", (FORWARD, right[:5], results, (0, 0))
    yield "no such kind", (FORWARD, right, results, (4, 0))
    yield "one number", (FORWARD, right, results, (0,))
    yield "gates of another kind", (FORWARD, right, results, (2, 0))
    yield "another batch", (FORWARD, (GIVEN, typed(4, 3), *rest), results, (0, 0))
    yield "another weight", (FORWARD, (*right[:3], typed(3, 2), BIAS, COUNT), results, (0, 0))
    yield "another bias", (FORWARD, (*right[:4], typed(2), COUNT), results, (0, 0))
    wide = typed(3, dtype="float64")
    yield "a bias of doubles", (FORWARD, (*right[:4], wide, COUNT), results, (0, 0))
    yield "two counts", (FORWARD, (*right[:5], typed(2, dtype="int64")), results, (0, 0))
    yield "a count of floats", (FORWARD, (*right[:5], typed()), results, (0, 0))
    yield "fewer steps", (FORWARD, right, (typed(4, 2, 3), *results[1:]), (0, 0))
    yield "cells that there are not", (FORWARD, right, (STATES, STATES, CELLS), (0, 0))
    yield "what is not saved", (FORWARD, right, (STATES, CELLS, STATES), (0, 0))
    back = (STATES, CELLS, STATES, CELLS, CELLS, STATE, NONE, WEIGHT, COUNT)
    gradients = (GIVEN, CELLS, STATE, NONE)
    yield "eight operands", (BACKWARD, back[:8], gradients, (0, 0))
    yield "nothing saved", (BACKWARD, back, gradients, (3, 0))
    yield "other states", (BACKWARD, (GIVEN, CELLS, typed(5, 1, 3), *back[3:]), gradients, (0, 0))
    yield "products of others", (BACKWARD, back, (GIVEN, GIVEN, STATE, NONE), (0, 0))
    yield "another first state", (BACKWARD, back, (GIVEN, CELLS, NONE, NONE), (0, 0))


CASES = dict(refusals())


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_is_refused(client: Client, case: str) -> None:
    target, operands, results, how = CASES[case]
    b = Builder(operands)
    config = {"how": np.array(how, np.int64)}
    found = b.custom_call(target, b.parameters, list(results), backend_config=config)
    executable = client.compile(b.finish(list(found)))
    with pytest.raises(InvalidArgument, match="A recurrent layer"):
        executable(*(np.zeros(item.shape, item.dtype.numpy) for item in operands))


@pytest.mark.parametrize("count", [-1, 9])
def test_a_count_beyond_the_steps_is_their_number_at_most(client: Client, count: int) -> None:
    b = Builder([GIVEN, STATE, NONE, WEIGHT, BIAS, COUNT])
    config = {"how": np.array((1, 0), np.int64)}
    made = b.custom_call(FORWARD, b.parameters, [STATES, CELLS, CELLS], backend_config=config)
    arrays = [np.ones(item.shape, np.float32) for item in (GIVEN, STATE, NONE, WEIGHT, BIAS)]
    states = np.asarray(client.compile(b.finish(list(made)))(*arrays, np.array(count))[0])
    assert (states != 0).all() == (count > 0)
    assert (states == 0).all() == (count < 0)
