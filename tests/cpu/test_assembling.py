"""Copies of elements to their places by the custom call: values, which ones are calls, refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.kernel_attributes import Assembly, AssemblyBox
from pjrt_bridge.stablehlo.patterns import for_target
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import assembling
from pjrt_bridge_cpu.assembling import TARGET
from pjrt_bridge_cpu.kernels import XlaKernels
from tests.cpu.helpers import emitted
from tests.extent import examples
from tests.stablehlo.helpers import program
from tests.stablehlo.patterns.moving import drawn_moves, sizes_of

pytestmark = pytest.mark.usefixtures("fresh")

DTYPES = ("bool", "int16", "bfloat16", "float32", "int64", "complex128")


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert assembling.can_assemble(client)
    monkeypatch.setattr(assembling, "LEAST", 1)
    monkeypatch.setattr(assembling, "LEAST_SLAB", 4)


def rewritten(source: Program) -> Program:
    kernels = XlaKernels()
    kernels.can_assemble = True
    return for_target(source, kernels)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_elements_are_where_operations_move_them(client: Client, data: st.DataObject) -> None:
    dtype = dtypes.of(data.draw(st.sampled_from(DTYPES)))
    shape = sizes_of(data)
    types = [TensorType(shape, dtype), TensorType(shape, dtype)]
    source = program(lambda b, *values: [drawn_moves(data, b, values)], *types)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 99, shape).astype(dtype.numpy) for _ in types]
    (expected,) = evaluate(source, *arrays)
    (found,) = client.compile(rewritten(source))(*arrays)
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("shape", [(3, 37, 53), (2, 16, 64), (300, 5), (5, 300)], ids=str)
def test_transpositions(client: Client, shape: tuple[int, ...], dtype: str) -> None:
    """In tiles, which rows and columns need not fill."""
    element = dtypes.of(dtype)
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    x = np.random.default_rng(0).integers(0, 99, shape).astype(element.numpy)
    source = program(lambda b, x: b.transpose(x, order), TensorType(shape, element))
    made = rewritten(source)
    assert made.text.count(f"@{TARGET}(") == 1
    np.testing.assert_array_equal(np.asarray(client.compile(made)(x)[0]), x.transpose(order))


@pytest.mark.parametrize("outer", [1, 7])
def test_large_ones_are_divided_among_threads(client: Client, outer: int) -> None:
    def body(b: Builder, x: Any, y: Any) -> Any:
        cut = b.slice(x, [0, 5], [outer, 399_000], [1, 1])
        return b.reverse(b.concatenate([cut, y, cut], 1), [1])

    arrays = [np.random.default_rng(0).random((outer, n), np.float32) for n in (400_000, 3)]
    source = program(body, *(TensorType(x.shape, dtypes.of("float32")) for x in arrays))
    made = rewritten(source)
    assert made.text.count(f"@{TARGET}(") == 1
    x, y = arrays
    expected = np.concatenate([x[:, 5:399_000], y, x[:, 5:399_000]], 1)[:, ::-1]
    np.testing.assert_array_equal(np.asarray(client.compile(made)(x, y)[0]), expected)


Y, Z = torch.randn(4, 6, 8), torch.randn(4, 2, 8)
FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
    "arrays": (lambda y, z: torch.cat([y, z, y], 1), 1),
    "slices": (lambda y, z: torch.cat([y[:, 2:5], z], 1), 1),
    "slices along another dimension": (lambda y, z: torch.cat([y[:2], y[1:3]], 1), 1),
    "a slice": (lambda y, z: y[:, 1:4].clone(), 1),
    "every other element": (lambda y, z: y[..., ::2].clone(), 1),
    "steps": (lambda y, z: functional.pad(y[:, ::2], (0, 0, 1, 1), mode="circular"), 1),
    "a roll": (lambda y, z: torch.cat([y[:, 4:], y[:, :4]], 1), 1),
    "a roll of two dimensions": (lambda y, z: y.roll((1, 2), (1, 2)), 1),
    "a reversal": (lambda y, z: y.flip(1, 2), 1),
    "a border": (lambda y, z: functional.pad(y, (1, 2, 3, 0), value=2.0), 1),
    "a reflected border": (lambda y, z: functional.pad(y, (2, 1), mode="reflect"), 1),
    "a repeated border": (lambda y, z: functional.pad(y, (2, 1), mode="replicate"), 1),
    "windows": (lambda y, z: y.unfold(2, 4, 4).contiguous(), 0),
    "windows that overlap": (lambda y, z: y.unfold(2, 4, 2).contiguous(), 1),
    "patches": (lambda y, z: y.unfold(1, 3, 3).unfold(2, 4, 4).reshape(4, -1), 1),
    "repetitions": (lambda y, z: y.repeat(2, 1, 3), 1),
    "heads": (lambda y, z: y.view(4, 6, 2, 4).transpose(1, 2).contiguous(), 1),
    "what lies across": (lambda y, z: torch.cat([y.mT, z.mT], 2), 1),
    "what a product reads": (lambda y, z: torch.cat([y, z], 1) @ torch.ones(8, 3), 1),
    "what is computed for the most part": (lambda y, z: torch.cat([y.sin(), z], 1), 0),
    "little that is computed": (lambda y, z: torch.cat([y, y, y, z.sin()], 1), 1),
    "what a loop reads": (lambda y, z: torch.cat([y, z], 1).sum((0, 1)), 0),
    "what an operation computes with": (lambda y, z: y.flip(1) + 1, 0),
    "a number everywhere": (lambda y, z: torch.full((40, 40), 3.0), 0),
    "windows reversed and cut": (
        lambda y, z: y.view(2, 2, 2, 3, 8).transpose(1, 2).reshape(4, 6, 8)[:, 1:].flip(1),
        1,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_of_pytorch(name: str) -> None:
    function, calls = FUNCTIONS[name]
    found = torch.compile(function, backend="pjrt")(Y, Z)
    torch.testing.assert_close(found, function(Y, Z))
    assert emitted(lambda *given: function(*given), Y, Z).count(f"@{TARGET}(") == calls


def test_a_cache_is_written_in_its_own_memory() -> None:
    """It would be copied as a whole."""

    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[:, 2:4] = x
        return cache.sum()

    text = emitted(step, torch.zeros(4, 64, 8), torch.ones(4, 2, 8))
    assert f"@{TARGET}(" not in text


X = TensorType((2, 3, 4), dtypes.of("float32"))
WIDE = TensorType((2, 3, 4), dtypes.of("float64"))
# Of all 24 elements: the operand, places, dimensions; strides of slabs; three numbers a dimension.
WHOLE = [0, 0, 0, 1, *[0] * 6, 24, 1, 1, *[0] * 15]


def changed(**numbers: int) -> list[int]:
    """The box of a whole array with other numbers."""
    names = ("operand", "place", "first", "dims", *"abcdef", "size", "to", "step")
    found = list(WHOLE)
    for name, number in numbers.items():
        found[names.index(name)] = number
    return found


REFUSED: dict[str, tuple[Sequence[TensorType], list[int], list[int], str]] = {
    "no operand": ((), [1], WHOLE, "found 0 operands"),
    "too many": ((X,) * 17, [1], WHOLE, "found 17 operands"),
    "another type": ((WIDE,), [1], WHOLE, "box 0 does not fit operand 0"),
    "an operand that is none": ((X,), [1], changed(operand=1), "box 0 is of operand 1"),
    "behind the end of the operand": ((X,), [1], changed(first=1), "box 0 does not fit"),
    "before its begin": ((X,), [1], changed(first=-1), "box 0 does not fit"),
    "backwards before its begin": ((X,), [1], changed(step=-1), "box 0 does not fit"),
    "behind the end of the result": ((X,), [1], changed(place=1), "box 0 does not fit"),
    "backwards in the result": ((X,), [1], changed(to=-1, place=23), "box 0 does not fit"),
    "steps that overflow": ((X,), [1], changed(step=1 << 62), "box 0 does not fit"),
    "sizes that overflow": ((X,), [1], changed(size=1 << 62, to=0, step=0), "have 46116"),
    "too many dimensions": ((X,), [1], changed(dims=7), "box 0 does not fit"),
    "no elements": ((X,), [1], changed(size=0), "box 0 does not fit"),
    "elements that no box has": ((X,), [1], changed(size=23), "have 23 elements, expected 24"),
    "slabs that do not divide it": ((X,), [5], WHOLE, "24 elements are no 5 slabs"),
    "slabs beyond the operand": ((X,), [2], changed(size=12, a=13), "box 0 does not fit"),
    "no slabs": ((X,), [0], WHOLE, "has 0 elements"),
    "half a box": ((X,), [1], WHOLE[:20], "not those that the bridge writes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    types, outer, boxes, reason = REFUSED[name]
    b = Builder(types)
    config = {"outer": np.array(outer, np.int64), "boxes": np.array(boxes, np.int64)}
    (found,) = b.custom_call(TARGET, b.parameters, [X], backend_config=config)
    arrays: list[Any] = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(client.compile(b.finish([found]))(*arrays)[0])


def test_more_dimensions_than_a_call_has_are_left_to_the_compiler() -> None:
    shape = (2,) * 14
    steps = tuple(1 << dim for dim in range(14))
    assembly = Assembly(shape, (AssemblyBox(0, (0,) * 14, shape, 0, steps),))
    kernels = XlaKernels()
    kernels.can_assemble = True
    b = Builder([TensorType(shape, dtypes.of("float32"))])
    assert kernels.assemble(b, assembly, b.parameters) is None


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_assemble
