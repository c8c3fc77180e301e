"""Windows written by the custom call: elements, which writes are calls, memory, refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.registry.targets import for_client, kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import windows
from pjrt_bridge_cpu.kernels import XlaKernels
from pjrt_bridge_cpu.windows import TARGET, write
from tests.extent import examples

INT64, FLOAT32, BFLOAT16 = map(dtypes.of, ("int64", "float32", "bfloat16"))
DTYPES = tuple(map(dtypes.of, ("bool", "int8", "bfloat16", "float32", "int64", "complex128")))


@pytest.fixture(autouse=True)
def _registered(client: Client) -> None:
    assert windows.can_write(client)


def written(
    x: np.ndarray[Any, Any],
    dims: Sequence[int],
    positions: np.ndarray[Any, Any],
    found: np.ndarray[Any, Any],
    counting: int,
) -> np.ndarray[Any, Any]:
    """The same, window after window."""
    result = x.copy()
    for place, window in zip(positions, np.moveaxis(found, counting, 0), strict=True):
        starts = dict(zip(dims, place.tolist(), strict=True))
        first = [starts.get(dim, 0) for dim in range(x.ndim)]
        ends = [at + size for at, size in zip(first, window.shape, strict=True)]
        inside = all(at >= 0 for at in first)
        if inside and all(end <= size for end, size in zip(ends, x.shape, strict=True)):
            result[tuple(map(slice, first, ends))] = window
    return result


def builder_of(*arrays: np.ndarray[Any, Any]) -> Builder:
    return Builder([TensorType(each.shape, dtypes.of(each.dtype.name)) for each in arrays])


def call_of(types: Sequence[TensorType], how: Any, *, into: TensorType | None = None) -> Program:
    builder = Builder(types)
    config = {} if how is None else {"how": how}
    return builder.finish(
        builder.custom_call(TARGET, builder.parameters, [into or types[0]], backend_config=config)
    )


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_it_writes_what_lies_in_the_array(client: Client, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    rank = len(shape)
    sizes = [data.draw(st.integers(0, size)) for size in shape]
    dims = data.draw(st.lists(st.integers(0, rank - 1), max_size=rank, unique=True))
    count, counting = data.draw(st.integers(0, 4)), data.draw(st.integers(0, rank))
    dtype = data.draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    found_shape = (*sizes[:counting], count, *sizes[counting:])
    x, found = (
        rng.integers(0, 100, each).astype(dtype.numpy) for each in (tuple(shape), found_shape)
    )
    positions = rng.integers(-1, 5, (count, len(dims)))
    builder = builder_of(x, positions, found)
    array, places, given_windows = builder.parameters
    result = write(builder, array, dims, places, given_windows, counting)
    (got,) = client.compile(builder.finish([result]))(x, positions, found)
    np.testing.assert_array_equal(np.asarray(got), written(x, dims, positions, found, counting))


@pytest.mark.parametrize("dims", [(0,), (1,), (2,)])
def test_large_ones_are_divided_among_threads(client: Client, dims: tuple[int, ...]) -> None:
    """Each thread has a range of all windows, so that the last of two at one position is there."""
    shape = (64, 96, 128)
    sizes = [1 if dim in dims else size for dim, size in enumerate(shape)]
    positions = np.array([[3], [60], [3], [17]] * 8)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    found = rng.standard_normal((len(positions), *sizes)).astype(np.float32)
    builder = builder_of(x, positions, found)
    array, places, given_windows = builder.parameters
    result = write(builder, array, dims, places, given_windows, 0)
    (got,) = client.compile(builder.finish([result]))(x, positions, found)
    np.testing.assert_array_equal(np.asarray(got), written(x, dims, positions, found, 0))


def test_bits_stay(client: Client) -> None:
    """NaN with a payload, and subnormal numbers."""
    bits = np.array([[0x7F81, 0xFFFF, 0x0001, 0x8001]], np.uint16)
    found = bits.view(dtypes.of("bfloat16").numpy).reshape(1, 1, 4)
    x = np.zeros((2, 4), found.dtype)
    positions = np.array([[1]])
    builder = builder_of(x, positions, found)
    array, places, given_windows = builder.parameters
    result = write(builder, array, (0,), places, given_windows, 0)
    (got,) = client.compile(builder.finish([result]))(x, positions, found)
    np.testing.assert_array_equal(np.asarray(got).view(np.uint16)[1], bits[0])


SLICES = st.sampled_from([(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])


@settings(max_examples=examples(40), deadline=None)
@given(SLICES, st.integers(0, 4), st.permutations(range(3)), st.data())
def test_slices_are_those_of_the_portable_form(
    client: Client, dims: tuple[int, ...], count: int, order: Sequence[int], data: st.DataObject
) -> None:
    """Also of an array that lies in another order in memory."""
    shape = (30, 40, 20)
    rest = [size for dim, size in enumerate(shape) if dim not in dims]
    counting = data.draw(st.integers(0, len(rest)))
    rng = np.random.default_rng(count)
    lying = tuple(shape[dim] for dim in order)
    x = rng.standard_normal(lying).astype(np.float32)
    # Of several slices at one position any may be there.
    positions = np.stack([rng.permutation(25)[:count] - 2 for _ in dims], 1).astype(np.int32)
    found = rng.standard_normal((*rest[:counting], count, *rest[counting:])).astype(np.float32)
    kernels = XlaKernels()
    kernels.can_write = True
    results = []
    for each in (kernels, Kernels()):
        builder = builder_of(x, positions.astype(np.int64), found)
        array, places, slices = builder.parameters
        turned = builder.transpose(array, [list(order).index(dim) for dim in range(3)])
        result = each.write_slices(builder, turned, dims, places, slices, counting)
        program = builder.finish([result])
        assert (TARGET in program.text) == (each is kernels)
        (got,) = client.compile(program)(x, positions.astype(np.int64), found)
        results.append(np.asarray(got))
    np.testing.assert_array_equal(*results)


P = torch.tensor([3])
SEVERAL = torch.tensor([5, 1, 30])


def put_one(x: Tensor, v: Tensor) -> None:
    x[P % 2, P, P, P] = v[0, 0, 0, :1]


def put_pairs(x: Tensor, v: Tensor) -> None:
    x[:, SEVERAL % 4, SEVERAL] = v[:, :3, 0]


def put_apart(x: Tensor, v: Tensor) -> None:
    x[P % 2, :, P] = v[:1, :, 0]


def put_several(x: Tensor, v: Tensor) -> None:
    x[:, :, SEVERAL] = v[:, :, :3]


def put_from_the_end(x: Tensor, v: Tensor) -> None:
    x[:, :, -P] = v[:, :, :1]


def put_on_a_grid(x: Tensor, v: Tensor) -> None:
    x[:, :, torch.stack([SEVERAL, SEVERAL + 7])] = v[:, :, :6].unflatten(2, (2, 3))


WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "copied along": lambda x, v: x.index_copy_(2, P, v[:, :, :1]),
    "copied to several": lambda x, v: x.index_copy_(2, SEVERAL, v[:, :, :3]),
    "put": put_several,
    "put on a grid": put_on_a_grid,
    "put at pairs": put_pairs,
    "put apart": put_apart,
    "put from the end": put_from_the_end,
    "one number": put_one,
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the arrays of the calls that were written."""
    found: list[tuple[int, ...]] = []

    def noting(b: Builder, x: Any, *rest: Any) -> Any:
        found.append(x.shape)
        return write(b, x, *rest)

    monkeypatch.setattr(windows, "write", noting)
    return found


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.bool])
@pytest.mark.parametrize("name", WRITES)
def test_which_writes_of_torch_are_calls(
    name: str, dtype: torch.dtype, calls: list[tuple[int, ...]]
) -> None:
    function = WRITES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 64, 32, generator=generator).to(dtype)
    v = torch.randn(2, 4, 64, 32, generator=generator).to(dtype)
    expected, found = x.clone(), x.clone()
    function(expected, v)

    def body(x: Tensor, v: Tensor) -> Tensor:
        function(x, v)
        return x.float().sum(-1)

    sums = torch.compile(body, backend="pjrt")(found, v)
    assert torch.equal(found, expected)
    torch.testing.assert_close(sums, expected.float().sum(-1), rtol=1e-4, atol=1e-4)
    assert calls


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("length", [64, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_which_parts_are_calls(
    dtype: torch.dtype, length: int, calls: list[tuple[int, ...]]
) -> None:
    """Of half precision, and of large arrays."""

    def body(x: Tensor, v: Tensor) -> Tensor:
        x[:, :, 7:9] = v
        x[1, 2] = v[1, 2, :1]
        return x + 1

    x, v = torch.zeros(2, 4, length, 128, dtype=dtype), torch.rand(2, 4, 2, 128).to(dtype)
    expected, found = x.clone(), x.clone()
    result = torch.compile(body, backend="pjrt")(found, v)
    assert torch.equal(result, body(expected, v))
    assert torch.equal(found, expected)
    assert bool(calls) == (dtype == torch.bfloat16 or length == 512)


@pytest.mark.usefixtures("fresh")
def test_what_is_added_is_no_call(calls: list[tuple[int, ...]]) -> None:
    def body(x: Tensor, v: Tensor) -> Tensor:
        return x.index_add(0, P, v)

    x, v = torch.ones(40, 128), torch.ones(1, 128)
    torch.testing.assert_close(torch.compile(body, backend="pjrt")(x, v), body(x, v))
    assert not calls


@pytest.mark.usefixtures("fresh")
def test_what_is_read_before_is_what_was_there(calls: list[tuple[int, ...]]) -> None:
    """The compiler copies what the call would write over."""

    def body(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = x.exp()
        y = x.index_copy(0, SEVERAL, v)
        return before + x, y * 2, y

    x, v = torch.randn(40, 128), torch.randn(3, 128)
    found = torch.compile(body, backend="pjrt")(x.clone(), v)
    torch.testing.assert_close(found, body(x, v))
    assert calls


def test_a_program_of_another_plugin_has_none() -> None:
    builder = builder_of(np.zeros((64, 64)), np.zeros((1, 1), np.int64), np.zeros((1, 64)))
    x, positions, slices = builder.parameters
    result = XlaKernels().write_slices(builder, x, [0], positions, slices, 0)
    assert TARGET not in builder.finish([result]).text


X, P2, W = TensorType((4, 8), FLOAT32), TensorType((2, 1), INT64), TensorType((2, 1, 8), FLOAT32)
HOW = np.array([0, 0], np.int64)
REFUSED: dict[str, tuple[Any, Sequence[TensorType], TensorType, str]] = {
    "no attribute": (None, (X, P2, W), X, "not those that the bridge writes"),
    "other integers": (HOW.astype(np.int32), (X, P2, W), X, "not those that the bridge writes"),
    "too few dimensions": (HOW[:1], (X, P2, W), X, "not those that the bridge writes"),
    "no dimension": (np.array([0, 2]), (X, P2, W), X, "not those that the bridge writes"),
    "a negative one": (np.array([0, -1]), (X, P2, W), X, "not those that the bridge writes"),
    "counted by none": (np.array([3, 0]), (X, P2, W), X, "not those that the bridge writes"),
    "counted otherwise": (np.array([1, 0]), (X, P2, W), X, "do not fit each other"),
    "two operands": (HOW, (X, P2), X, "three operands and one result"),
    "another type": (HOW, (X, P2, TensorType(W.shape, BFLOAT16)), X, "element types"),
    "another result": (HOW, (X, P2, W), TensorType(X.shape, INT64), "element types"),
    "short positions": (HOW, (X, TensorType((2, 1), dtypes.of("int32")), W), X, "element types"),
    "a larger result": (HOW, (X, P2, W), TensorType((4, 9), FLOAT32), "do not fit each other"),
    "a larger window": (HOW, (X, P2, TensorType((2, 1, 9), FLOAT32)), X, "do not fit each other"),
    "another count": (HOW, (X, P2, TensorType((3, 1, 8), FLOAT32)), X, "do not fit each other"),
    "another rank": (HOW, (X, P2, TensorType((2, 8), FLOAT32)), X, "do not fit each other"),
    "a list of positions": (HOW, (X, TensorType((2,), INT64), W), X, "do not fit each other"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    how, types, into, reason = REFUSED[name]
    executable = client.compile(call_of(types, how, into=into))
    arrays = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(executable(*arrays)[0])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_write


@pytest.mark.parametrize("start", ["int8", "int32", "uint64"])
@pytest.mark.parametrize("at", [0, 3, 39, 100, -1])
def test_parts_that_jax_wrote_are_moved_to_where_they_fit(
    client: Client, start: str, at: int
) -> None:
    text = f"""
    func.func @main(%x: tensor<40x256xbf16>, %p: tensor<2x256xbf16>,
        %i: tensor<{TYPES[start]}>) -> tensor<40x256xbf16> {{
      %0 = stablehlo.constant dense<0> : tensor<{TYPES[start]}>
      %1 = stablehlo.dynamic_update_slice %x, %p, %i, %0 : (tensor<40x256xbf16>,
        tensor<2x256xbf16>, tensor<{TYPES[start]}>, tensor<{TYPES[start]}>) -> tensor<40x256xbf16>
      return %1 : tensor<40x256xbf16>
    }}
    """
    program = Program.from_text(text)
    found = for_client(program, client)
    assert TARGET in found.text
    kind = dtypes.of("bfloat16").numpy
    x, part = np.zeros((40, 256), kind), np.ones((2, 256), kind)
    place = np.array(at).astype(start)
    results = [client.compile(each)(x, part, place)[0] for each in (program, found)]
    np.testing.assert_array_equal(*(np.asarray(each) for each in results))


TYPES = {"int8": "i8", "int32": "i32", "uint64": "ui64"}
