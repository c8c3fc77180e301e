"""Expressions that are computed by one call: numbers, and which ones are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pjrt_bridge import dtypes
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.patterns import expressions, following, for_target
from pjrt_bridge_cpu.expressions import TARGET
from tests.cpu.helpers import emitted, written_by
from tests.extent import examples
from tests.stablehlo.helpers import program
from tests.stablehlo.patterns.drawing import drawn

F32, BF16 = map(dtypes.of, ("float32", "bfloat16"))
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_several_results_are_what_the_operations_compute(
    client: Client, data: st.DataObject
) -> None:
    """Some are read by a product, which comes before the others."""
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 8, 9]), min_size=1, max_size=3)))

    def body(b: Builder, *parameters: Value) -> Sequence[Value]:
        values = list(drawn(data, b, parameters))
        for _ in range(data.draw(st.integers(0, 2))):
            x = data.draw(st.sampled_from(values))
            squares = b.dot_general(x, x, lhs_contract=range(x.rank), rhs_contract=range(x.rank))
            values.append(b.multiply(x, b.broadcast_in_dim(squares, x.shape, ())))
            values += drawn(data, b, values)[len(values) :]
        return data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))

    source = program(body, TensorType(shape, F32), TensorType(shape, F32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expressions, "LEAST", 1)
        patch.setattr(following, "_RUN", 1)
        written = for_target(source, kernels_of(client))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for _ in range(2)]
    found = client.compile(written)(*arrays)
    for item, expected in zip(found, evaluate(source, *arrays), strict=True):
        np.testing.assert_allclose(np.asarray(item), expected, rtol=3e-2, atol=1e-4)


def moments(x: torch.Tensor, mean: torch.Tensor, square: torch.Tensor) -> Sequence[torch.Tensor]:
    mean = mean + 0.1 * (x - mean)
    square = 0.999 * square + 0.001 * x * x
    return mean, square, x - mean / (square.sqrt() + 1e-8)


def gradients(x: torch.Tensor, gate: torch.Tensor, given: torch.Tensor) -> Sequence[torch.Tensor]:
    """Of a gated activation."""
    logistic = gate.sigmoid()
    silu = gate * logistic
    return given * silu, given * x * logistic * (1 + gate * (1 - logistic))


def kept(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Sequence[torch.Tensor]:
    """A value that is needed for a gradient, and what is computed of it."""
    found = x + y
    return found, functional.gelu(found) * z


def through_a_product(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Sequence[torch.Tensor]:
    first = x + y
    second = first @ z.t()
    return first, first * y[:, :1], second.tanh()


def of_other_sizes(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Sequence[torch.Tensor]:
    return x.tanh(), x[:50].sigmoid(), y.exp()


def of_other_arrays(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Sequence[torch.Tensor]:
    return x.tanh(), y.sigmoid(), z.exp()


def many(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Sequence[torch.Tensor]:
    return tuple((x * number).tanh() for number in range(1, 7))


MERGED: dict[str, tuple[Callable[..., Sequence[torch.Tensor]], int]] = {
    "moments": (moments, 1),
    "gradients": (gradients, 1),
    "kept": (kept, 1),
    "through a product": (through_a_product, 3),
    "of other sizes": (of_other_sizes, 3),
    "of other arrays": (of_other_arrays, 3),
    "more results than a call has": (many, 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MERGED)
def test_which_expressions_are_one_call(name: str, dtype: torch.dtype) -> None:
    function, count = MERGED[name]
    generator = torch.Generator().manual_seed(0)
    given = [torch.rand(96, 128, generator=generator).to(dtype) for _ in range(3)]
    assert emitted(function, *given).count(TARGET) == count
    found = torch.compile(function, backend="pjrt")(*given)
    expected = function(*(item.float() for item in given))
    close = {"rtol": 0.02, "atol": 0.03} if dtype == torch.bfloat16 else {}
    for item, wide in zip(found, expected, strict=True):
        torch.testing.assert_close(item, wide.to(dtype), **close)


def test_a_result_in_half_precision_is_read_as_it_is_written(client: Client) -> None:
    """It is rounded before the others are computed of it."""

    def body(b: Builder, x: Value) -> Sequence[Value]:
        narrow = b.convert(b.multiply(x, b.full(x.shape, 1.0001, F32)), BF16)
        return [narrow, b.multiply(b.convert(narrow, F32), x)]

    source = program(body, TensorType((64, 64), F32))
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    written = for_target(source, kernels_of(client))
    assert written.text.count(f"@{TARGET}(") == 1
    narrow, product = (np.asarray(item) for item in client.compile(written)(x))
    exact = (x * np.float32(1.0001)).astype(narrow.dtype)
    np.testing.assert_array_equal(narrow, exact)
    np.testing.assert_array_equal(product, exact.astype(np.float32) * x)


# -- results that take the memory of arguments ----------------------------------------------------

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.01, amsgrad=True),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01),
    "RMSprop": lambda weights: torch.optim.RMSprop(weights, lr=0.01, momentum=0.5),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_an_optimizer_is_one_call_for_each_weight(name: str) -> None:
    shapes = [(512, 256), (300, 500)]
    pairs: list[Sequence[torch.Tensor]] = []
    texts = ""
    for is_compiled in (False, True):
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
        optimizer = OPTIMIZERS[name](weights)
        step = torch.compile(optimizer.step, backend="pjrt") if is_compiled else optimizer.step
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=generator)
            if is_compiled:
                texts += written_by(step)
            else:
                step()
        pairs.append([weight.detach() for weight in weights])
    for found, expected in zip(*pairs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    # A first step may have a program of its own, which makes the state.
    assert texts.count(f"@{TARGET}(") == len(shapes) * texts.count("func.func public")
    assert "output_operand_aliases" in texts


def test_a_donor_that_is_read_otherwise_keeps_its_memory() -> None:
    """A transposed argument is read in another order than the one in which it is written."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_((x + x.t()).sin())
        y.add_(x).mul_(y.flip(0))
        return x.sum(0)

    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(640, 640, generator=generator) for _ in range(2)]
    found = [item.clone() for item in given]
    results = [function(*given), torch.compile(function, backend="pjrt")(*found)]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-4)
    for one, other in zip(found, given, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
