"""The one table of element types.

Each row ties together the five names of an element type: the `PJRT_Buffer_Type` code
(pjrt_c_api.h), the NumPy dtype (ml_dtypes for those that NumPy lacks), the DLPack (code, bits)
pair (dlpack.h 1.1), the StableHLO spelling (StableHLO spec, "Types") and the torch attribute.
Everything else in the project looks types up here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from pjrt_bridge.errors import UnsupportedDtype


@dataclass(frozen=True, slots=True)
class DType:
    """One element type under all its names.

    Attributes:
        name: canonical name, NumPy's or ml_dtypes' spelling (`float32`, `bfloat16`).
        code: `PJRT_Buffer_Type`.
        bits: bits of one element of the device's packed form.
        numpy: dtype of the host array; sub-byte types take one byte per element there.
        dlpack: (DLDataTypeCode, bits) where the DLPack standard has the type and the host array
            stores it as DLPack does, else None.
        stablehlo: element type as StableHLO text spells it.
        torch: attribute of the torch module, or None where torch has no such type.
        since: minor version of the PJRT C API that brought the type, 0 for those of old.
    """

    name: str
    code: int
    bits: int
    numpy: np.dtype[Any]
    dlpack: tuple[int, int] | None
    stablehlo: str
    torch: str | None
    since: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of one element in host memory."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """A real floating-point type of any width."""
        return self.stablehlo.startswith(("f", "bf"))

    @property
    def is_complex(self) -> bool:
        """complex64 or complex128."""
        return self.stablehlo.startswith("complex")

    @property
    def is_bool(self) -> bool:
        """The predicate type."""
        return self.name == "bool"

    @property
    def is_signed_integer(self) -> bool:
        """A two's complement integer of any width."""
        return self.name.startswith("int")

    @property
    def is_unsigned_integer(self) -> bool:
        """An unsigned integer of any width (bool is none)."""
        return self.name.startswith("uint")

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned integer; bool is none."""
        return self.is_signed_integer or self.is_unsigned_integer

    def __repr__(self) -> str:
        return f"DType({self.name})"

    def __str__(self) -> str:
        return self.name


_SINCE = {"float6_e2m3fn": 114, "float6_e3m2fn": 114}


def _rows() -> list[DType]:
    # Columns: name, PJRT code, bits, DLPack code (None: not in DLPack), StableHLO, torch.
    table: list[tuple[str, int, int, int | None, str, str | None]] = [
        ("bool", 1, 8, 6, "i1", "bool"),
        ("int8", 2, 8, 0, "i8", "int8"),
        ("int16", 3, 16, 0, "i16", "int16"),
        ("int32", 4, 32, 0, "i32", "int32"),
        ("int64", 5, 64, 0, "i64", "int64"),
        ("uint8", 6, 8, 1, "ui8", "uint8"),
        ("uint16", 7, 16, 1, "ui16", "uint16"),
        ("uint32", 8, 32, 1, "ui32", "uint32"),
        ("uint64", 9, 64, 1, "ui64", "uint64"),
        ("float16", 10, 16, 2, "f16", "float16"),
        ("float32", 11, 32, 2, "f32", "float32"),
        ("float64", 12, 64, 2, "f64", "float64"),
        ("bfloat16", 13, 16, 4, "bf16", "bfloat16"),
        ("complex64", 14, 64, 5, "complex<f32>", "complex64"),
        ("complex128", 15, 128, 5, "complex<f64>", "complex128"),
        ("float8_e5m2", 16, 8, 12, "f8E5M2", "float8_e5m2"),
        ("float8_e4m3fn", 17, 8, 10, "f8E4M3FN", "float8_e4m3fn"),
        ("float8_e4m3b11fnuz", 18, 8, 9, "f8E4M3B11FNUZ", None),
        ("float8_e5m2fnuz", 19, 8, 13, "f8E5M2FNUZ", "float8_e5m2fnuz"),
        ("float8_e4m3fnuz", 20, 8, 11, "f8E4M3FNUZ", "float8_e4m3fnuz"),
        # DLPack packs sub-byte elements, the host arrays of ml_dtypes do not: no DLPack form.
        ("int4", 21, 4, None, "i4", None),
        ("uint4", 22, 4, None, "ui4", None),
        ("int2", 24, 2, None, "i2", None),
        ("uint2", 25, 2, None, "ui2", None),
        ("float8_e4m3", 26, 8, 8, "f8E4M3", None),
        ("float8_e3m4", 27, 8, 7, "f8E3M4", None),
        ("float8_e8m0fnu", 28, 8, 14, "f8E8M0FNU", "float8_e8m0fnu"),
        ("float4_e2m1fn", 29, 4, None, "f4E2M1FN", None),
        ("float6_e2m3fn", 32, 6, None, "f6E2M3FN", None),
        ("float6_e3m2fn", 33, 6, None, "f6E3M2FN", None),
    ]
    rows = []
    for name, code, bits, dlpack, stablehlo, torch in table:
        host = np.dtype(getattr(ml_dtypes, name, name))
        pair = None if dlpack is None else (dlpack, bits)
        rows.append(DType(name, code, bits, host, pair, stablehlo, torch, _SINCE.get(name, 0)))
    return rows


ALL: tuple[DType, ...] = tuple(_rows())
"""Every element type that the bridge knows, in PJRT code order."""

_BY_NAME = {row.name: row for row in ALL}
_BY_CODE = {row.code: row for row in ALL}
_BY_NUMPY = {row.numpy: row for row in ALL}
_BY_DLPACK = {row.dlpack: row for row in ALL if row.dlpack is not None}
_BY_STABLEHLO = {row.stablehlo: row for row in ALL}
_BY_TORCH = {f"torch.{row.torch}": row for row in ALL if row.torch is not None}


def of(name: str | DType) -> DType:
    """The type of a canonical name such as `"bfloat16"`.

    Raises:
        UnsupportedDtype: no such name.
    """
    if isinstance(name, DType):
        return name
    found = _BY_NAME.get(name)
    if found is None:
        raise UnsupportedDtype(f"unknown element type {name!r}; known: {', '.join(_BY_NAME)}")
    return found


def from_code(code: int) -> DType:
    """The type of a `PJRT_Buffer_Type` value.

    Raises:
        UnsupportedDtype: INVALID, TOKEN, or a code newer than this bridge.
    """
    found = _BY_CODE.get(code)
    if found is None:
        raise UnsupportedDtype(f"PJRT_Buffer_Type {code} is no element type that the bridge knows")
    return found


@cache
def _from_numpy(dtype: np.dtype[Any]) -> DType:
    native = dtype.newbyteorder("=")
    if not dtype.isnative:
        raise UnsupportedDtype(
            f"NumPy dtype {dtype} is not in this machine's byte order; "
            f"convert with array.astype({native.str!r})"
        )
    found = _BY_NUMPY.get(native)
    if found is None:
        raise UnsupportedDtype(f"NumPy dtype {dtype} has no PJRT element type")
    return found


def from_numpy(dtype: Any) -> DType:
    """The type of a NumPy dtype (ml_dtypes included).

    Raises:
        UnsupportedDtype: no PJRT counterpart (object, str, longdouble, ...) or foreign byte order.
    """
    return _from_numpy(np.dtype(dtype))


def from_dlpack(code: int, bits: int, lanes: int = 1) -> DType:
    """The type of a DLDataType.

    Raises:
        UnsupportedDtype: vectors (lanes other than 1) and pairs that PJRT does not have.
    """
    found = _BY_DLPACK.get((code, bits)) if lanes == 1 else None
    if found is None:
        raise UnsupportedDtype(
            f"DLPack type (code {code}, {bits} bits, {lanes} lanes) has no PJRT element type"
        )
    return found


def from_stablehlo(text: str) -> DType:
    """The type of a StableHLO element type such as `"f32"`; signless and signed are one.

    Raises:
        UnsupportedDtype: a type that is no tensor element of PJRT (tokens, quantized types, ...).
    """
    found = _BY_STABLEHLO.get(text) or _BY_STABLEHLO.get(text.removeprefix("s"))
    if found is None:
        raise UnsupportedDtype(f"StableHLO element type {text!r} has no PJRT element type")
    return found


def from_torch(dtype: object) -> DType:
    """The type of a `torch.dtype` (looked up by its text, so torch is not imported here).

    Raises:
        UnsupportedDtype: quantized, packed or otherwise foreign types.
    """
    found = _BY_TORCH.get(str(dtype))
    if found is None:
        raise UnsupportedDtype(f"{dtype} has no PJRT element type")
    return found
