"""Objects that call themselves arrays: broken in one way each, or odd but right."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from pjrt_bridge.runtime.transfers import dlpack

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class BrokenDLPack:
    """Its methods return or raise what they are told."""

    def __init__(self, device: Any, capsule: Any) -> None:
        self._device = device
        self._capsule = capsule

    def __dlpack_device__(self) -> Any:
        return _given(self._device)

    def __dlpack__(self, **options: Any) -> Any:
        return _given(self._capsule)

    def __repr__(self) -> str:
        return f"BrokenDLPack({self._device!r}, {self._capsule!r})"


class BrokenArray:
    """`__array__` returns or raises what it is told."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return _given(self._answer)

    def __repr__(self) -> str:
        return f"BrokenArray({self._answer!r})"


class Capsule:
    """A DLPack capsule with impossible contents."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields
        self._numbers = np.arange(16, dtype=np.int64)

    def make(self) -> Any:
        """The capsule; this object owns what it leads to."""
        fields = dict(self._fields)
        versioned = fields.pop("versioned", False)
        kind: Any = dlpack._ManagedVersioned if versioned else dlpack._Managed
        self._managed = kind()
        if versioned:
            self._managed.major, self._managed.minor = fields.pop("version", (1, 0))
        tensor = self._managed.tensor
        tensor.data = fields.pop("data", self._numbers.ctypes.data)
        tensor.device.device_type = 1
        tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = fields.pop("dtype", (0, 64, 1))
        shape = fields.pop("shape", (4,))
        tensor.ndim = fields.pop("ndim", len(shape or ()))
        if shape is not None:
            self._shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
            tensor.shape = self._shape
        strides = fields.pop("strides", None)
        if strides is not None:
            self._strides = (ctypes.c_int64 * max(len(strides), 1))(*strides)
            tensor.strides = self._strides
        tensor.byte_offset = fields.pop("offset", 0)
        name = b"dltensor_versioned" if versioned else b"dltensor"
        return _new_capsule(ctypes.addressof(self._managed), fields.pop("name", name), None)

    def __repr__(self) -> str:
        return f"Capsule({self._fields!r})"


def _given(answer: Any) -> Any:
    if isinstance(answer, BaseException):
        raise answer
    return answer.make() if isinstance(answer, Capsule) else answer


_ERRORS = st.sampled_from(
    [BufferError("no"), KeyError("no"), AttributeError("no"), ZeroDivisionError("no"), OSError()]
)
_JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.just(object()),
    st.just(int),
)

capsules = st.one_of(
    st.builds(Capsule, ndim=st.sampled_from([-1, -(1 << 31), 65, 1 << 20, (1 << 31) - 1])),
    st.builds(Capsule, shape=st.none(), ndim=st.integers(1, 3)),
    st.builds(Capsule, data=st.just(0), shape=st.lists(st.integers(1, 3), min_size=1, max_size=3)),
    st.builds(
        Capsule, dtype=st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 99))
    ),
    st.builds(
        Capsule,
        shape=st.lists(st.sampled_from([-1, 0, 1 << 62]), min_size=1, max_size=4),
    ),
    st.builds(
        Capsule, versioned=st.just(True), version=st.tuples(st.sampled_from([0, 2, 9]), st.just(0))
    ),
    st.builds(Capsule, name=st.sampled_from([b"used_dltensor", b"", b"other"])),
    st.builds(Capsule, versioned=st.booleans()),
)

_broken = st.one_of(
    st.builds(
        BrokenDLPack,
        st.one_of(
            st.just((1, 0)),
            st.tuples(st.integers(-5, 20), st.integers(-1, 3)),
            _JUNK,
            _ERRORS,
            st.just(()),
        ),
        st.one_of(_JUNK, _ERRORS),
    ),
    st.builds(BrokenDLPack, st.just((1, 0)), capsules),
    st.builds(BrokenArray, st.one_of(_JUNK, _ERRORS)),
)

_DTYPES = st.sampled_from(
    [
        "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16",
        ">i4", ">f8", "S3", "U2", "V4", "O", "M8[s]", "m8[ns]", "g", "G",
        ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.float8_e4m3fn,
        ml_dtypes.float4_e2m1fn, [("a", "i4"), ("b", "f4")],
    ]
)  # fmt: skip


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays of every type, in every order, over memory that they stay within."""
    dtype = np.dtype(draw(_DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=5))
    array = np.zeros(shape, dtype)
    for _ in range(draw(st.integers(0, 3))):
        how = draw(st.sampled_from(["T", "reverse", "step", "broadcast", "readonly", "fortran"]))
        if how == "T":
            array = array.T
        elif how == "reverse" and array.ndim:
            array = array[::-1]
        elif how == "step" and array.ndim:
            array = array[..., ::2]
        elif how == "broadcast":
            array = np.broadcast_to(array, (draw(st.integers(0, 3)), *array.shape))
        elif how == "readonly":
            array = array[...]
            array.flags.writeable = False
        elif how == "fortran":
            array = np.asfortranarray(array)
    return array


_nested = st.recursive(_JUNK, lambda inner: st.lists(inner, max_size=4), max_leaves=10)

data = st.one_of(
    arrays(),
    _broken,
    _nested,
    st.builds(np.ma.masked_array, st.just([1.0, 2.0]), mask=st.just([True, False])),
    st.builds(memoryview, st.binary(max_size=20)),
    st.builds(lambda n: memoryview(bytes(4 * n)).cast("f"), st.integers(0, 5)),
    st.builds(np.array, st.integers(0, 1 << 63)),
    st.builds(set, st.just([1, 2])),
    st.builds(lambda n: np.zeros((1,) * n), st.integers(0, 32)),
)
"""What somebody may hand to `Client.put`."""
