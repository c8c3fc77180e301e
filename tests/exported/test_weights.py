"""Files of weights: what was written is there, aligned, readable for others, and checked."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from pjrt_bridge.errors import SavedModelError, UnsupportedDtype
from pjrt_bridge.exported import weights
from pjrt_bridge.exported.files import Array, map_file

DTYPES = [np.float32, np.int64, np.bool_, np.uint8, np.complex64, ml_dtypes.bfloat16]
ARRAYS = st.builds(
    lambda shape, dtype, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")


def read(path: Path) -> dict[str, Array]:
    return weights.read(path, map_file(path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, ARRAYS, max_size=5))
def test_arrays_come_back_aligned(tmp_path: Path, tensors: dict[str, Array]) -> None:
    path = tmp_path / "weights.safetensors"
    assert weights.write(path, tensors) == hashlib.sha256(path.read_bytes()).hexdigest()
    found = read(path)
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
        assert not found[name].flags.writeable
        if array.size:
            assert found[name].__array_interface__["data"][0] % 64 == 0


def test_other_readers_understand_the_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    tensors = {"odd": np.arange(3, dtype=np.int32), "b": np.ones((5, 7)), "c": np.arange(16.0)}
    weights.write(path, tensors)
    theirs = load_file(path)
    assert [name for name in theirs if not name.startswith(weights.PADDING)] == sorted(
        tensors, key=list(theirs).index
    )
    assert all(np.array_equal(theirs[name], array) for name, array in tensors.items())


def test_files_of_other_writers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"w": np.arange(6.0).reshape(2, 3)}, path, {"format": "np"})
    assert read(path)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_sizes_that_fit_need_no_padding(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    weights.write(path, {"odd": np.zeros(3, np.uint8), "even": np.zeros(16, np.float32)})
    assert not [name for name in load_file(path) if name.startswith(weights.PADDING)]


def test_types_without_a_name_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedDtype, match=r"weight 'w'.*complex128"):
        weights.write(tmp_path / "w", {"w": np.zeros(1, np.complex128)})


def cut(data: bytes) -> bytes:
    return data[:-8]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (cut, r"'w': data_offsets: found 0 to 16 of 8 bytes, needed 16 bytes"),
        (lambda data: data[:5], r"header: found 5 bytes"),
        (lambda data: b"\xff" * 8 + data[8:], r"header: found \d+ bytes"),
        (lambda data: data.replace(b"{", b"<", 1), r"header: found no JSON object"),
        (lambda data: data.replace(b'"F32"', b'"F99"'), r"'w': dtype: found 'F99'"),
        (lambda data: data.replace(b"[4]", b"[9]"), r"needed 36 bytes for float32\[9\]"),
        (lambda data: data.replace(b"shape", b"shade"), r"needed dtype, shape and data_offsets"),
        (lambda data: b"", r"cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, change: Callable[[bytes], bytes], text: str
) -> None:
    path = tmp_path / "weights.safetensors"
    weights.write(path, {"w": np.zeros(4, np.float32)})
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SavedModelError, match=text) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SavedModelError, match="nowhere: cannot be read: No such file"):
        map_file(tmp_path / "nowhere")
