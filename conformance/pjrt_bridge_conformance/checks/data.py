"""Data to a device and back: every element type, odd shapes, strides, large and shared arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import DataError
from pjrt_bridge.runtime.transfers.host import ALIGNMENT
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.checks.conversions import every
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import equal, require, same
from pjrt_bridge_conformance.numerics import build, run
from pjrt_bridge_conformance.outcomes import Unsupported

DATA = Group("data")

_SHAPES = ((), (1,), (7,), (0,), (3, 5), (2, 0, 3), (1, 1, 1), (5, 3, 2, 2), (63,), (65,))


def patterns(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Random bits of a type: of floats also infinities, NaN with payloads and denormal numbers."""
    random = np.random.default_rng([seed, dtype.code, len(shape), *shape])
    count = int(np.prod(shape))
    if dtype.bits < 8 or dtype.is_bool:
        values = every(dtype)
        return np.asarray(values[random.integers(0, len(values), count)].reshape(shape))
    raw = random.integers(0, 256, count * dtype.itemsize, np.uint8, endpoint=False)
    return raw.view(dtype.numpy).reshape(shape)


@DATA.each(dtypes.ALL)
def put_get(context: Context, dtype: DType) -> None:
    """What is put comes back bit for bit, whatever its shape."""
    client = context.client
    for shape in _SHAPES:
        x = patterns(dtype, shape)
        with client.put(x) as buffer:
            same(buffer.to_numpy(), x, f"{dtype}{list(shape)}")


@DATA.each([dtype for dtype in dtypes.ALL if dtype.bits <= 16])
def every_value(context: Context, dtype: DType) -> None:
    """Every bit pattern of a small type comes back."""
    x = every(dtype)
    same(context.client.put(x).to_numpy(), x, f"all values of {dtype}")


@DATA.each(dtypes.ALL)
def described(context: Context, dtype: DType) -> None:
    """A buffer states its element type, dimensions, device and a size that holds its elements."""
    client = context.client
    api = client.api
    with client.put(patterns(dtype, (3, 5))) as buffer, buffer.held() as pointer:
        kind = api.call("Buffer_ElementType", buffer=pointer).type
        equal(kind, dtype.code, "PJRT_Buffer_ElementType")
        found = api.call("Buffer_Dimensions", buffer=pointer)
        equal(found.num_dims, 2, "PJRT_Buffer_Dimensions: num_dims")
        place = api.call("Buffer_Device", buffer=pointer).device
        equal(place, client.devices[0].pointer, "PJRT_Buffer_Device")
        least = (15 * dtype.bits + 7) // 8
        require(buffer.nbytes >= least, f"{buffer.nbytes} bytes hold no {least}")


@DATA.each(dtypes.ALL)
def through_program(context: Context, dtype: DType) -> None:
    """A program that gives its argument back gives its bits back."""
    x = patterns(dtype, (3, 7))
    if dtype.is_float or dtype.is_complex:
        # NaN keeps its bits in a buffer, but need not in a program.
        x = np.where(np.isnan(x), np.zeros((), x.dtype), x)
    (found,) = run(context.client, build(lambda b, x: b.reshape(x, (21,)), [x]), [x])
    same(found, x.reshape(21), f"{dtype} through a program")


_STRIDES: dict[str, Callable[[Array], Array]] = {
    "transposed": lambda x: x.T,
    "permuted": lambda x: x.reshape(4, 3, 8).transpose(2, 0, 1),
    "reversed": lambda x: x[::-1],
    "both_reversed": lambda x: x[::-1, ::-1],
    "every_second": lambda x: x[::2, 1::3],
    "column": lambda x: x[:, 3],
    "repeated": lambda x: np.broadcast_to(x[0], (5, 8)),
    "repeated_scalar": lambda x: np.broadcast_to(x[0, 0], (3, 2)),
    "unaligned": lambda x: x.reshape(-1)[1:],
}


@DATA.each([f"{name}.{kind}" for name in _STRIDES for kind in ("uint8", "bfloat16", "float64")])
def strided(context: Context, case: str) -> None:
    """Arrays with steps between their elements are put as they read."""
    name, kind = case.split(".")
    x = _STRIDES[name](patterns(dtypes.of(kind), (12, 8)))
    same(context.client.put(x).to_numpy(), np.ascontiguousarray(x), f"a {name} array")


@DATA.each([1 << 20, 1 << 26])
def large(context: Context, size: int) -> None:
    """Megabytes come back."""
    x = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    same(context.client.put(x).to_numpy(), x, f"{size} bytes")


@DATA.each(range(1, 11))
def rank(context: Context, rank: int) -> None:
    """Arrays have up to ten dimensions, and a size of 1 is a dimension."""
    shape = tuple(1 + (dim % 2) for dim in range(rank))
    x = patterns(dtypes.of("int32"), shape)
    same(context.client.put(x).to_numpy(), x, f"rank {rank}")


def _aligned(count: int) -> Array:
    raw = np.zeros(4 * count + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    x = raw[start : start + 4 * count].view(np.float32)
    x[:] = np.arange(count)
    return x


@DATA.check
def zero_copy(context: Context) -> None:
    """Aligned host memory is used in place, and read by programs."""
    client = context.client
    if not client.shares_host_memory:
        raise Unsupported("the plugin does not use host memory in place")
    x = _aligned(64)
    with client.put(x, copy=False) as buffer:
        equal(buffer.address, x.__array_interface__["data"][0], "address")
        (found,) = run(client, build(lambda b, x: b.add(x, x), [x]), [x])
        same(found, x + x, "a sum of shared memory")
        same(buffer.to_numpy(), x, "shared memory")


@DATA.check
def unaligned_shared(context: Context) -> None:
    """Host memory that is not aligned is copied, and right."""
    x = _aligned(65)[1:]
    with context.client.put(x) as buffer:
        same(buffer.to_numpy(), x, "unaligned memory")
    try:
        with context.client.put(x, copy=False) as buffer:
            equal(buffer.address, x.__array_interface__["data"][0], "address")
    except DataError:
        return


@DATA.check
def copied_during_call(context: Context) -> None:
    """Memory that was put with kImmutableOnlyDuringCall may change right after."""
    x = np.arange(4096, dtype=np.float32)
    buffer = context.client.put(x, copy=True)
    kept = x.copy()
    x[:] = -1
    same(buffer.to_numpy(), kept, "values that were put")


@DATA.check
def result_is_read_twice(context: Context) -> None:
    """A buffer can be read many times."""
    x = np.arange(100, dtype=np.int32)
    with context.client.put(x) as buffer:
        for _ in range(5):
            same(buffer.to_numpy(), x, "a buffer")


@DATA.check
def results_are_buffers(context: Context) -> None:
    """Results of a program are arguments of the next one, without a way over the host."""
    x = np.arange(8, dtype=np.int32)
    with context.client.compile(build(lambda b, x: b.add(x, x), [x])) as executable:
        (result,) = executable(x)
        for _ in range(4):
            (result,) = executable.execute([result])
        same(result.to_numpy(), 32 * x, "five sums")
