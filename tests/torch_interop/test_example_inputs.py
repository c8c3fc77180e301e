"""Descriptions of example inputs as torch tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pjrt_bridge.errors import DataError
from pjrt_bridge.torch_interop.example_inputs import example_input


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("f32[8,64]", torch.float32, (8, 64)),
        ("bf16[]", torch.bfloat16, ()),
        ("f8E5M2[3]", torch.float8_e5m2, (3,)),
        ("i64[4,128]<7", torch.int64, (4, 128)),
        ("i1[3]", torch.bool, (3,)),
    ],
)
def test_random_numbers(text: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    found = example_input(text)
    assert (found.dtype, tuple(found.shape)) == (dtype, shape)
    if dtype == torch.int64:
        assert sorted(found.unique().tolist()) == list(range(7))


@pytest.mark.parametrize("element", ["f33", "i4"])
def test_types_that_torch_has_not(element: str) -> None:
    with pytest.raises(DataError) as error:
        example_input(f"{element}[2]")
    assert str(error.value) == f"input '{element}[2]': torch has no element type {element!r}"


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3.0))
    assert torch.equal(example_input(str(path)), torch.arange(3.0).double())
    np.save(path, np.array(["words"]))
    with pytest.raises(DataError, match=r"a\.npy: cannot be taken as an input: can't convert"):
        example_input(str(path))
    np.savez(tmp_path / "a.npz", np.arange(3))
    with pytest.raises(DataError, match=r"expected a \.npy file with one"):
        example_input(str(tmp_path / "a.npz"))
