"""New elements in the memory of a caller's array."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from pjrt_bridge.errors import DataError
from pjrt_bridge.runtime.transfers.host import overwrite

DTYPES = [
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "int8",
    "int64",
    "uint8",
    "bool",
    "complex64",
]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("strided", [False, True])
def test_tensors_of_every_type(name: str, strided: bool) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    values = np.array([[0, 1, 1], [1, 0, 2]]).astype(dtype)
    whole = torch.full((2, 6) if strided else (2, 3), 7).to(getattr(torch, name))
    target = whole[:, ::2] if strided else whole
    overwrite(target, values)
    assert target.tolist() == values.tolist()
    if strided:
        assert whole[:, 1::2].tolist() == torch.full((2, 3), 7).to(whole.dtype).tolist()


def test_values_of_another_type_are_converted() -> None:
    target = torch.zeros(2, dtype=torch.bfloat16)
    overwrite(target, np.array([1.5, 2.5]))
    assert target.tolist() == [1.5, 2.5]


def test_arrays_of_numpy_keep_their_type() -> None:
    target = np.zeros(2, ml_dtypes.bfloat16)
    overwrite(target, np.array([1.5, 2.5]))
    assert target.tolist() == [1.5, 2.5]


def test_what_nobody_may_write_to() -> None:
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    for target in (frozen, jnp.zeros(2), [0.0, 0.0], 3):
        with pytest.raises(DataError):
            overwrite(target, np.ones(2))


def test_elements_that_share_memory() -> None:
    repeated = np.lib.stride_tricks.as_strided(np.zeros(1), (4,), (0,))
    windows = torch.zeros(5).unfold(0, 2, 1)
    for array in (torch.zeros(1).expand(4), repeated, windows, windows.numpy()):
        with pytest.raises(DataError, match="several elements are in the same memory"):
            overwrite(array, np.ones(array.shape))


def test_another_shape() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        overwrite(torch.zeros(2), np.ones(3))
