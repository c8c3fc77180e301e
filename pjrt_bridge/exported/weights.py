"""Weights beside a program: safetensors files that are mapped, not read.

Arrays lie at multiples of 64 bytes, so that plugins which use host memory in place take them as
they are, from the file's pages. The format allows no gaps; so arrays whose size is a multiple come
first, and where there are others between them, entries named `__padding__...` fill up.

Source: the safetensors format (huggingface/safetensors, README, "Format").
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import SavedModelError, UnsupportedDtype
from pjrt_bridge.exported.fields import LARGEST
from pjrt_bridge.exported.files import Array
from pjrt_bridge.runtime.transfers.host import ALIGNMENT

HEADER_LIMIT = 100_000_000
"""Bytes of a file's header, as the format has it."""
PADDING = "__padding__"
"""What the names of entries begin with that hold nothing."""

_RANK = 32
"""Dimensions of an array, of which NumPy's have more."""

_NAMES = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bfloat16": "BF16",
    "complex64": "C64",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
}
_DTYPES = {theirs: dtypes.of(ours) for ours, theirs in _NAMES.items()}


def write(path: Path, tensors: Mapping[str, Array]) -> str:
    """Write a file; the SHA-256 of it in hex.

    Raises:
        UnsupportedDtype: an element type that the format does not have.
        OSError: the file cannot be written.
    """
    header: dict[str, Any] = {}
    chunks: list[Array | bytes] = []
    at = 0
    # Those that leave the next one aligned come first.
    for name, array in sorted(tensors.items(), key=lambda item: item[1].nbytes % ALIGNMENT != 0):
        if gap := -at % ALIGNMENT:
            header[f"{PADDING}{len(chunks)}"] = _entry("U8", (gap,), at, gap)
            chunks.append(bytes(gap))
            at += gap
        header[name] = _entry(_name(name, array), array.shape, at, array.nbytes)
        chunks.append(array)
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in (len(text).to_bytes(8, "little"), text, *chunks):
            data = chunk if isinstance(chunk, bytes) else _bytes(chunk)
            digest.update(data)
            file.write(data)
    return digest.hexdigest()


def read(path: Path, data: Array) -> dict[str, Array]:
    """The arrays of a file, as views of its mapped bytes.

    Args:
        path: for error messages.
        data: what `map_file` gave.

    Raises:
        SavedModelError: no such file, truncated, or of element types that are not known.
    """
    size = int.from_bytes(bytes(data[:8]), "little")
    if size > HEADER_LIMIT:
        raise SavedModelError(f"{path}: header: found {size} bytes, needed {HEADER_LIMIT} at most")
    if data.size < 8 or size > data.size - 8:
        raise SavedModelError(
            f"{path}: header: found {data.size} bytes in the file, needed {size + 8}"
        )
    try:
        header = json.loads(bytes(data[8 : 8 + size]))
        header.pop("__metadata__", None)
    except (ValueError, AttributeError, RecursionError) as error:
        raise SavedModelError(f"{path}: header: found no JSON object: {error}") from error
    body = data[8 + size :]
    return {
        name: _array(f"{path}: {name!r}", entry, body)
        for name, entry in header.items()
        if not name.startswith(PADDING)
    }


def _array(where: str, entry: Any, body: Array) -> Array:
    try:
        dtype, shape = _DTYPES.get(entry["dtype"]), tuple(map(_size, entry["shape"]))
        start, end = map(_size, entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise SavedModelError(
            f"{where}: found {reprlib.repr(entry)}, needed dtype, shape and data_offsets"
        ) from error
    if dtype is None:
        raise SavedModelError(
            f"{where}: dtype: found {entry['dtype']!r}, needed one of {', '.join(_DTYPES)}"
        )
    needed = math.prod(shape) * dtype.itemsize
    if end - start != needed or not start <= end <= body.size or len(shape) > _RANK:
        raise SavedModelError(
            f"{where}: data_offsets: found {start} to {end} of {body.size} bytes, needed {needed} "
            f"bytes for {dtype}{list(shape)}"
        )
    return body[start:end].view(dtype.numpy).reshape(shape)


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(value)
    return value


def _entry(dtype: str, shape: tuple[int, ...], start: int, size: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, start + size]}


def _name(name: str, array: Array) -> str:
    found: DType = dtypes.from_numpy(array.dtype)
    if found.name not in _NAMES:
        raise UnsupportedDtype(f"weight {name!r}: safetensors files have no {found}")
    return _NAMES[found.name]


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
