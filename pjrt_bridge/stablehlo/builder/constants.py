"""NumPy arrays to MLIR dense constants and back, bit for bit, for every element type."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings

Array = np.ndarray[Any, Any]


def as_array(value: ArrayLike, dtype: DType | str | None) -> tuple[Array, DType]:
    """The value as a host array of the wanted element type.

    Floating-point targets round; integer and boolean targets must hold every value exactly.

    Args:
        value: anything NumPy understands. Without `dtype` NumPy's type counts, so a Python float
            is float64 and a Python int is int64.
        dtype: element type, or None to take the value's own.

    Raises:
        ProgramError: values do not fit, complex values for a real type, no rectangular array.
        UnsupportedDtype: an element type without a PJRT counterpart.
    """
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise ProgramError(f"constant: cannot become an array: {error}") from error
    if dtype is None:
        return array, dtypes.from_numpy(array.dtype)
    target = dtypes.of(dtype)
    if array.dtype == target.numpy:
        return array, target
    if array.dtype.kind in "OUSMm":
        raise ProgramError(f"constant: values of NumPy type {array.dtype} cannot be {target}")
    if array.dtype.kind == "c" and not target.is_complex:
        raise ProgramError(f"constant: complex values for the real type {target}")
    with np.errstate(all="ignore"):
        converted = array.astype(target.numpy)
        if target.is_integer or target.is_bool:
            fits = np.array_equal(converted.astype(array.dtype), array)
            if array.dtype.kind == "f":
                # 2.0**63 becomes the largest int64, which becomes 2.0**63 again.
                fits = fits and bool(
                    (array < 2.0 ** (target.bits - target.is_signed_integer)).all()
                )
            if not fits:
                raise ProgramError(f"constant: values of {array.dtype} do not fit {target}")
    return converted, target


def dense(array: Array, dtype: DType, tensor: Any) -> Any:
    """The dense elements attribute of an array; a splat where all elements have equal bits.

    Args:
        array: host array of `dtype.numpy`.
        dtype: its element type.
        tensor: the MLIR tensor type; one of another size makes a splat of a single element.
    """
    raw = _raw(array, dtype)
    if _is_splat(raw):
        raw = raw[:1]
    return bindings.load().ir.DenseElementsAttr.get(raw, type=tensor, context=tensor.context)


def _raw(array: Array, dtype: DType) -> Array:
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype.is_bool or dtype.is_complex:
        return flat
    bits = flat.view(f"u{dtype.itemsize}")
    # ml_dtypes sign-extends sub-byte integers; MLIR wants the unused bits of the byte clear.
    return bits & ((1 << dtype.bits) - 1) if dtype.bits < 8 else bits


def _is_splat(raw: Array) -> bool:
    if raw.size == 0:
        return False
    # Bytes, not values: -0.0 differs from 0.0 and a NaN equals itself.
    rows = raw.view(np.uint8).reshape(raw.size, raw.itemsize)
    return bool((rows[-1] == rows[0]).all() and (rows == rows[0]).all())
