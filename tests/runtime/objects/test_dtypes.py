"""Every element type of the plugin, to the device and back, bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import UnsupportedDtype
from pjrt_bridge.runtime import Client, Executable
from tests import programs
from tests.runtime.arrays import aligned, every_value

PLUGIN_MINOR = 81
OLD = [dtype for dtype in dtypes.ALL if dtype.since <= PLUGIN_MINOR]
NEW = [dtype for dtype in dtypes.ALL if dtype.since > PLUGIN_MINOR]
IN_TORCH = [dtype for dtype in OLD if dtype.torch]
SHAPES: list[tuple[int, ...]] = [(), (1,), (0, 2), (7,), (3, 5), (2, 3, 4)]

_kept: dict[tuple[Client, str], Executable] = {}


def compiled(client: Client, program: str) -> Executable:
    """Compiling takes longer than running, and examples repeat."""
    return _kept.setdefault((client, program), client.compile(program))


def tensor_type(dtype: DType, shape: tuple[int, ...]) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{dtype.stablehlo}>"


def same_bits(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", OLD, ids=str)
def test_numpy_round_trip(client: Client, dtype: DType, shape: tuple[int, ...]) -> None:
    data = every_value(dtype, shape)
    for copy in (None, True):
        buffer = client.put(aligned(data), copy=copy)
        assert buffer.dtype is dtype
        same_bits(buffer.to_numpy(), data)
        same_bits(np.asarray(buffer), data)


@pytest.mark.parametrize("dtype", OLD, ids=str)
def test_strided_round_trip(client: Client, dtype: DType) -> None:
    data = every_value(dtype, (4, 6))
    for view in (data.T, data[::-1, 1::2], np.broadcast_to(data[0], (3, 6))):
        same_bits(client.put(view).to_numpy(), view)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", IN_TORCH, ids=str)
def test_torch_round_trip(client: Client, dtype: DType, shape: tuple[int, ...]) -> None:
    data = every_value(dtype, shape)
    raw = torch.from_numpy(aligned(data.reshape(-1)).view(np.uint8))
    tensor = raw.view(getattr(torch, dtype.torch or "")).reshape(shape)
    buffer = client.put(tensor)
    assert buffer.dtype is dtype
    back = torch.from_dlpack(buffer)
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert back.reshape(-1).view(torch.uint8).numpy().tobytes() == data.tobytes()


@pytest.mark.parametrize("dtype", OLD, ids=str)
def test_through_a_program(client: Client, dtype: DType) -> None:
    data = every_value(dtype, (3, 5))
    executable = client.compile(programs.identity(tensor_type(dtype, (3, 5))))
    (result,) = executable(data)
    assert result.dtype is dtype
    same_bits(result.to_numpy(), data)
    same_bits(np.asarray(result), data)


@pytest.mark.parametrize("dtype", NEW, ids=str)
def test_types_that_are_newer_than_the_plugin(client: Client, dtype: DType) -> None:
    with pytest.raises(UnsupportedDtype, match=r"came with PJRT API 0\.114.*implements 0\.81"):
        client.put(np.zeros(3, dtype.numpy))
    with pytest.raises(UnsupportedDtype, match=r"came with PJRT API 0\.114"):
        client.compile(programs.identity(tensor_type(dtype, (3,))))


NUMPY = [dtype.numpy for dtype in OLD if dtype.numpy.isbuiltin == 1]


@settings(max_examples=150)
@given(data=st.data())
def test_any_values_and_shapes(client: Client, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    dtype = data.draw(st.sampled_from(NUMPY))
    array = data.draw(hnp.arrays(dtype, shape))
    order = data.draw(st.permutations(range(array.ndim)))
    view = array.transpose(order)[data.draw(hnp.basic_indices(array.transpose(order).shape))]
    same_bits(client.put(view).to_numpy(), np.asarray(view))
    if array.dtype.itemsize == 4:
        type = tensor_type(dtypes.from_numpy(array.dtype), array.shape)
        (result,) = compiled(client, programs.identity(type))(array)
        same_bits(np.asarray(result), array)
