"""Call frames made by hand, for what no plugin would give the handler, or only sometimes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.abi import ffi_structs as ffi
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.aten import _aten
from pjrt_bridge_cpu.aten.calls import KernelCall, emit

Array = np.ndarray[Any, Any]

CODES = {name: code for code, name in ffi.DATA_TYPES.items()}
_STRUCTS = {name.removeprefix("XLA_FFI_"): struct for name, struct in ffi.STRUCTS.items()}
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_HANDLER = _FUNCTION(_aten.HANDLER)
_MADE = 4096


class _Threads(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("count", ctypes.POINTER(ctypes.c_int64)),
    ]


class _Api(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("version", ffi.STRUCTS["XLA_FFI_Api_Version"].ctype),
        ("internal", ctypes.c_void_p),
        # In the order of the header; the 13th counts threads.
        ("functions", ctypes.c_void_p * 18),
    ]


class Caller:
    """Calls the handler in XLA's place.

    Args:
        threads: that the pool says it has; None: it fails to say.
        version: of the API that it has.
        size: that it states for its function table.
    """

    def __init__(
        self,
        threads: int | None = 1,
        *,
        version: tuple[int, int] = (0, 3),
        size: int = ctypes.sizeof(_Api),
    ) -> None:
        self._threads = threads
        self._error: tuple[int, str] | None = None
        self.destroyed = 0
        made = {0: self._create, 2: self._destroy, 12: self._count}
        self._kept = {place: _FUNCTION(function) for place, function in made.items()}
        self._api = _Api(size=size)
        self._api.version.major_version, self._api.version.minor_version = version
        for place, function in self._kept.items():
            self._api.functions[place] = ctypes.cast(function, ctypes.c_void_p).value or 0

    def _create(self, address: int) -> int:
        args = _STRUCTS["Error_Create_Args"].ctype.from_address(address)
        text = ctypes.string_at(args.message)
        self._error = args.errc, text.decode(errors="replace")
        return _MADE

    def _destroy(self, address: int) -> int | None:
        self.destroyed += 1
        return None

    def _count(self, address: int) -> int | None:
        if self._threads is None:
            return _MADE
        _Threads.from_address(address).count[0] = self._threads
        return None

    def __call__(
        self,
        operands: Sequence[Array],
        results: Sequence[Array],
        attributes: Mapping[str, Any],
        *,
        codes: Mapping[int, int] | None = None,
        kinds: Mapping[int, int] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> tuple[int, str] | None:
        """Code and text of the error, or None.

        Args:
            operands: arrays.
            results: arrays that are written to.
            attributes: texts and arrays by name.
            codes: element types by place, where they are not the arrays'.
            kinds: XLA_FFI_ArgType by place, where it is not that of a buffer.
            sizes: bytes that the frame (""), or a struct in it, says that it has.
        """
        kept: list[Any] = []
        both = [*operands, *results]
        buffers = [_buffer(array, (codes or {}).get(i), kept) for i, array in enumerate(both)]
        types = [(kinds or {}).get(i, ffi.BUFFER) for i in range(len(both))]
        count = len(operands)
        names = list(attributes)
        values = [_attribute(attributes[name], kept) for name in names]
        frame = _STRUCTS["CallFrame"].new(
            api=ctypes.addressof(self._api),
            stage=ffi.EXECUTE,
            args=_STRUCTS["Args"].new(
                size=count,
                types=_list(ctypes.c_int, types[:count], kept),
                args=_list(ctypes.c_void_p, buffers[:count], kept),
            ),
            rets=_STRUCTS["Rets"].new(
                size=len(results),
                types=_list(ctypes.c_int, types[count:], kept),
                rets=_list(ctypes.c_void_p, buffers[count:], kept),
            ),
            attrs=_STRUCTS["Attrs"].new(
                size=len(names),
                types=_list(ctypes.c_int, [kind for kind, _ in values], kept),
                names=_list(ctypes.c_void_p, [_span(name, kept) for name in names], kept),
                attrs=_list(ctypes.c_void_p, [value for _, value in values], kept),
            ),
        )
        for name, size in (sizes or {}).items():
            (getattr(frame, name) if name else frame).struct_size = size
        self._error = None
        failed = _HANDLER(ctypes.addressof(frame))
        assert bool(failed) == (self._error is not None)
        return self._error

    def stated(self, *, room: int | None = None) -> tuple[int, int] | tuple[int, str]:
        """The version that the handler states when it is asked, or code and text of its error.

        Args:
            room: bytes that the struct for the answer says that it has.
        """
        answer = _STRUCTS["Metadata"].new()
        if room is not None:
            answer.struct_size = room
        extension = _STRUCTS["Metadata_Extension"].ctype()
        extension.extension_base.struct_size = _STRUCTS["Metadata_Extension"].size
        extension.extension_base.type = ffi.METADATA
        extension.metadata = ctypes.addressof(answer)
        frame = _STRUCTS["CallFrame"].new(
            extension_start=ctypes.addressof(extension), api=ctypes.addressof(self._api)
        )
        self._error = None
        failed = _HANDLER(ctypes.addressof(frame))
        assert bool(failed) == (self._error is not None)
        version = answer.api_version
        return self._error or (version.major_version, version.minor_version)


class _Recorder(Builder):
    config: Mapping[str, Any]

    def custom_call(self, *args: Any, **kwargs: Any) -> Any:
        self.config = kwargs["backend_config"]
        return super().custom_call(*args, **kwargs)


def type_of(array: Array) -> TensorType:
    return TensorType(array.shape, dtypes.from_numpy(array.dtype))


def attributes_of(call: Callable[..., KernelCall], operands: Sequence[Array]) -> dict[str, Any]:
    """What `emit` writes for a call of the parameters of a program."""
    builder = _Recorder([type_of(array) for array in operands])
    emit(builder, call(*builder.parameters))
    return dict(builder.config)


def _list(kind: Any, values: Sequence[int], kept: list[Any]) -> int:
    kept.append((kind * max(len(values), 1))(*values))
    return ctypes.addressof(kept[-1])


def _buffer(array: Array, code: int | None, kept: list[Any]) -> int:
    dtype = str(dtypes.from_numpy(array.dtype))
    struct = _STRUCTS["Buffer"].new(
        dtype=CODES[dtype] if code is None else code,
        data=array.ctypes.data if array.size else None,
        rank=array.ndim,
        dims=_list(ctypes.c_int64, array.shape, kept),
    )
    kept.extend((struct, array))
    return ctypes.addressof(struct)


def _span(text: str, kept: list[Any]) -> int:
    data = text.encode()
    kept.append(ctypes.create_string_buffer(data))
    kept.append(_STRUCTS["ByteSpan"].ctype(ptr=ctypes.addressof(kept[-1]), len=len(data)))
    return ctypes.addressof(kept[-1])


def _attribute(value: Any, kept: list[Any]) -> tuple[int, int]:
    if isinstance(value, str):
        return ffi.STRING, _span(value, kept)
    kept.append(np.ascontiguousarray(value))
    array: Array = kept[-1]
    code = CODES[str(array.dtype)]
    kept.append(_STRUCTS["Array"].ctype(dtype=code, size=array.size, data=array.ctypes.data))
    return ffi.ARRAY, ctypes.addressof(kept[-1])
