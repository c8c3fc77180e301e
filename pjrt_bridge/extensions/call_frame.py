"""Call frames of XLA's FFI: operands, results and attributes of a custom call, as NumPy arrays."""

from __future__ import annotations

import ctypes
import math
import traceback
from typing import Any, NamedTuple

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.abi import ffi_structs as ffi
from pjrt_bridge.abi.values import read_int64s, read_pointers
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ErrorCode, PjrtError, UnsupportedDtype

Array = np.ndarray[Any, Any]
Attribute = bool | int | float | complex | str | Array | dict[str, "Attribute"]
"""What `backend_config` holds; lists of numbers come as arrays."""

_FRAME = ffi.STRUCTS["XLA_FFI_CallFrame"].ctype
_BUFFER = ffi.STRUCTS["XLA_FFI_Buffer"].ctype
_ATTRIBUTES = ffi.STRUCTS["XLA_FFI_Attrs"].ctype
_SCALAR = ffi.STRUCTS["XLA_FFI_Scalar"].ctype
_ARRAY = ffi.STRUCTS["XLA_FFI_Array"].ctype
_SPAN = ffi.STRUCTS["XLA_FFI_ByteSpan"].ctype
_BASE = ffi.STRUCTS["XLA_FFI_Extension_Base"].ctype
_METADATA = ffi.STRUCTS["XLA_FFI_Metadata_Extension"].ctype
_API = ffi.API.struct.ctype
_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

_CODES: tuple[tuple[type[BaseException], ErrorCode], ...] = (
    (NotImplementedError, ErrorCode.UNIMPLEMENTED),
    (MemoryError, ErrorCode.RESOURCE_EXHAUSTED),
    (IndexError, ErrorCode.OUT_OF_RANGE),
    (ValueError, ErrorCode.INVALID_ARGUMENT),
    (TypeError, ErrorCode.INVALID_ARGUMENT),
    (KeyboardInterrupt, ErrorCode.CANCELLED),
)


class CustomCall(NamedTuple):
    """The arguments of one custom call.

    Attributes:
        operands: read-only views of the plugin's memory, good as long as the call.
        results: writable views of it, to be filled.
        attributes: by name.
    """

    operands: tuple[Array, ...]
    results: tuple[Array, ...]
    attributes: dict[str, Attribute]


def metadata(frame: int) -> Any:
    """The XLA_FFI_Metadata that a frame asks for; None where it is a call."""
    extension = _FRAME.from_address(frame).extension_start
    while extension:
        base = _BASE.from_address(extension)
        if base.type == ffi.METADATA:
            pointer = _METADATA.from_address(extension).metadata
            return ffi.STRUCTS["XLA_FFI_Metadata"].ctype.from_address(pointer)
        extension = base.next
    return None


def api_version(frame: int) -> tuple[int, int]:
    """The version of the FFI API that the caller has."""
    version = _API.from_address(_FRAME.from_address(frame).api).api_version
    return version.major_version, version.minor_version


def stated_version(handler: int, api: int) -> tuple[int, int]:
    """Ask a handler for its version of the FFI API, as a plugin does.

    Args:
        handler: address of the C function.
        api: XLA_FFI_Api of a plugin.
    """
    answer = ffi.STRUCTS["XLA_FFI_Metadata"].new()
    answer.api_version.struct_size = ffi.STRUCTS["XLA_FFI_Api_Version"].size
    extension = ffi.STRUCTS["XLA_FFI_Metadata_Extension"].ctype()
    extension.extension_base.struct_size = ffi.STRUCTS["XLA_FFI_Metadata_Extension"].size
    extension.extension_base.type = ffi.METADATA
    extension.metadata = ctypes.addressof(answer)
    frame = ffi.STRUCTS["XLA_FFI_CallFrame"].new(
        extension_start=ctypes.addressof(extension), api=api, stage=ffi.EXECUTE
    )
    _HANDLER(handler)(ctypes.addressof(frame))
    return answer.api_version.major_version, answer.api_version.minor_version


def read(frame: int) -> CustomCall:
    """Decode a frame.

    Raises:
        UnsupportedDtype: packed elements, or a type that is newer than the bridge.
    """
    call = _FRAME.from_address(frame)
    operands = tuple(_array(at) for at in read_pointers(call.args.args, call.args.size))
    results = tuple(_array(at) for at in read_pointers(call.rets.rets, call.rets.size))
    for operand in operands:
        operand.flags.writeable = False
    return CustomCall(operands, results, _attributes(call.attrs))


def failure(frame: int, error: BaseException) -> int | None:
    """An XLA_FFI_Error of an exception, for the handler to return."""
    code = int(error.code) if isinstance(error, PjrtError) else _code(error)
    text = f"{type(error).__name__}: {error}"
    if code in ErrorCode._value2member_map_:
        # Plugins lose the code of a program that has failed after its call; see `from_code`.
        text = f"{ErrorCode(code).name}: {text}"
    if steps := traceback.extract_tb(error.__traceback__):
        text += f" (in {steps[-1].name}, {steps[-1].filename}:{steps[-1].lineno})"
    message = text.replace("\0", " ").encode(errors="replace")
    struct = ffi.API.functions["Error_Create"]
    assert struct is not None
    args = struct.new(
        message=ctypes.cast(ctypes.c_char_p(message), ctypes.c_void_p).value, errc=code
    )
    create = _API.from_address(_FRAME.from_address(frame).api).Error_Create
    made: int | None = _HANDLER(create)(ctypes.addressof(args))
    return made


def _code(error: BaseException) -> ErrorCode:
    return next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.INTERNAL)


def _dtype(code: int) -> DType:
    name = ffi.DATA_TYPES.get(code)
    if name is None:
        raise UnsupportedDtype(f"XLA_FFI_DataType {code} is no element type that the bridge knows")
    found = dtypes.of(name)
    if found.bits < 8:
        raise UnsupportedDtype(f"{found}: a custom call gets packed elements, which NumPy lacks")
    return found


def _array(address: int) -> Array:
    buffer = _BUFFER.from_address(address)
    return _view(_dtype(buffer.dtype), read_int64s(buffer.dims, buffer.rank), buffer.data)


def _view(dtype: DType, shape: tuple[int, ...], data: int | None) -> Array:
    size = math.prod(shape)
    if not size:
        return np.empty(shape, dtype.numpy)
    memory: Any = (ctypes.c_char * (size * dtype.itemsize)).from_address(data or 0)
    return np.ndarray(shape, dtype.numpy, memory)


def _attributes(attributes: Any) -> dict[str, Attribute]:
    count = attributes.size
    kinds = (ctypes.c_int * count).from_address(attributes.types) if count else ()
    names = read_pointers(attributes.names, count)
    values = read_pointers(attributes.attrs, count)
    return {
        _text(name): _attribute(kind, value)
        for kind, name, value in zip(kinds, names, values, strict=True)
    }


def _attribute(kind: int, address: int) -> Attribute:
    if kind == ffi.STRING:
        return _text(address)
    if kind == ffi.DICTIONARY:
        return _attributes(_ATTRIBUTES.from_address(address))
    if kind == ffi.ARRAY:
        array = _ARRAY.from_address(address)
        return _view(_dtype(array.dtype), (array.size,), array.data).copy()
    if kind == ffi.SCALAR:
        scalar = _SCALAR.from_address(address)
        value: Attribute = _view(_dtype(scalar.dtype), (), scalar.value).item()
        return value
    raise UnsupportedDtype(f"XLA_FFI_AttrType {kind} is no kind that the bridge knows")


def _text(span: int) -> str:
    found = _SPAN.from_address(span)
    return ctypes.string_at(found.ptr, found.len).decode(errors="replace") if found.len else ""
