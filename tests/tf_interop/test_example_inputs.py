"""Descriptions of example inputs as tensors of TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge.errors import DataError
from pjrt_bridge.tf_interop.example_inputs import example_input


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("f32[8,64]", tf.float32, (8, 64)),
        ("bf16[]", tf.bfloat16, ()),
        ("i64[4,128]<7", tf.int64, (4, 128)),
        ("i32[]", tf.int32, ()),
        ("i1[3]", tf.bool, (3,)),
    ],
)
def test_random_numbers(text: str, dtype: Any, shape: tuple[int, ...]) -> None:
    found = example_input(text)
    assert (found.dtype, tuple(found.shape)) == (dtype, shape)
    if dtype == tf.int64:
        assert sorted(set(found.numpy().flatten().tolist())) == list(range(7))


def test_words() -> None:
    assert example_input("str[ant,bee]").numpy().tolist() == [b"ant", b"bee"]
    assert example_input("str[]").shape == (0,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("f33[2]", "StableHLO element type 'f33' has no PJRT element type"),
        ("f8E5M2[2]", "TensorFlow has no element type 'f8E5M2' that a device has"),
    ],
)
def test_types_that_tensorflow_has_not(text: str, reason: str) -> None:
    with pytest.raises(DataError) as error:
        example_input(text)
    assert str(error.value) == f"input {text!r}: {reason}"


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3.0))
    assert example_input(str(path)).numpy().tolist() == [0, 1, 2]
    np.save(path, np.zeros(2, "V3"))
    with pytest.raises(DataError, match=r"a\.npy: cannot be taken as an input: .*data type"):
        example_input(str(path))
    with pytest.raises(DataError, match=r"'i64\[4,128\]<1000' or 'str\[ant,bee\]'$"):
        example_input("no description")
