"""TensorFlow's element types and those of PJRT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import UnsupportedDtype

# What crosses through DLPack, over the same memory.
NAMES = (
    "bfloat16",
    "bool",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)
_KNOWN: Mapping[Any, DType] = {
    getattr(tf, name): dtypes.from_numpy(getattr(tf, name).as_numpy_dtype) for name in NAMES
}


def crosses(dtype: Any) -> bool:
    """Whether tensors of a type can be given to a device."""
    return dtype.base_dtype in _KNOWN


def of(dtype: Any, what: str) -> DType:
    """The element type of tensors.

    Raises:
        UnsupportedDtype: strings, resources, variants, quantized numbers.
    """
    found = _KNOWN.get(dtype.base_dtype)
    if found is None:
        raise UnsupportedDtype(
            f"{what}: found type {dtype.name}, which no device has; expected one of "
            f"{', '.join(NAMES)}"
        )
    return found


def name_of(dtype: DType) -> str | None:
    """TensorFlow's name of an element type, None where it has none."""
    return _TF.get(dtype)


_TF: Mapping[DType, str] = {found: name.name for name, found in _KNOWN.items()}
