"""Torch's device for others (PrivateUse1), registered from Python, and tensors on it.

A tensor of such a device has sizes, strides and a storage of its true size. Torch tells storages
from each other by their address, which is none of memory here: a read there ends the process
instead of getting a wrong number. What a storage holds is an attribute of it, which all tensors
over that storage share.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.func import functionalize

from pjrt_bridge import dtypes
from pjrt_bridge.errors import UnsupportedDtype
from pjrt_bridge.torch_interop.compat.aot.tracing import errors_unlogged, trace_beside_others
from pjrt_bridge.torch_interop.compat.capture.dynamo import leave_alone
from pjrt_bridge.torch_interop.compat.operators import operator

KEY = "PrivateUse1"
"""The dispatch key of the device's operators."""

DEVICE_TYPE: int = torch._C._autograd.DeviceType.PrivateUse1.value
"""The number of the device's type in torch's C++."""

OTHER_LAYOUTS = tuple(f"{layout}{KEY}" for layout in ("Quantized", "NestedTensor"))
"""The dispatch keys of tensors of the device that are nested, or have more than elements."""

_NESTED = (
    "aten._nested_tensor_from_tensor_list.default",
    "aten._nested_tensor_from_mask.default",
    "aten._nested_view_from_buffer.default",
)
"""Operators that make nested tensors of others."""

_NESTED_SIZES = (
    "aten._nested_tensor_size.default",
    "aten._nested_tensor_strides.default",
    "aten._nested_tensor_storage_offsets.default",
)

_EXTENSION_DEVICE = 12
"""`kDLExtDev` of DLPack, which torch takes for this device."""


FALL_THROUGH: Any = torch.library.fallthrough_kernel
"""The kernel of a dispatch key that has nothing to do for an operator."""


class OperatorKernels:
    """Kernels of operators on the device, registered as long as this object lives."""

    def __init__(self) -> None:
        self._aten: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        self._all: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]

    def of(self, name: str, kernel: Callable[..., Any], key: str = KEY) -> None:
        """Give an operator of ATen, by name, a kernel."""
        called = kernel.func if isinstance(kernel, partial) else kernel
        if isinstance(called, FunctionType):
            leave_alone(called)
        self._aten.impl(name.removeprefix("aten.").removesuffix(".default"), kernel, key)

    def of_others(self, kernel: Callable[..., Any], key: str = KEY) -> None:
        """Give all other operators one, which is called with the operator first."""
        self._all.fallback(kernel, key)

    def of_other_layouts(self, kernel: Callable[..., Any]) -> None:
        """Give operators on and to nested tensors, and on quantized ones, one as `of_others` does.

        Their sizes are in host memory. Autograd asks for them where an error ends the process.
        """
        for layout in OTHER_LAYOUTS:
            self.of_others(kernel, layout)
        for name in _NESTED:
            self.of(name, partial(kernel, operator(name)))
        on_host = torch._C.DispatchKeySet(torch._C.DispatchKey.NestedTensorCPU)
        for name in _NESTED_SIZES:
            op = operator(name)
            assert op is not None
            self.of(name, partial(op.redispatch, on_host), f"NestedTensor{KEY}")


class _DLManagedTensor(ctypes.Structure):
    """DLManagedTensor of DLPack."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


# A prototype of its own: the attributes of ctypes.pythonapi are shared by all modules.
_capsules = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_new_capsule: Any = _capsules(("PyCapsule_New", ctypes.pythonapi))
_DESCRIBED = 4096
"""Descriptions of tensors that are kept."""

_addresses = itertools.cycle(range(1 << 48, 1 << 55, 1 << 16))
"""Addresses that no memory of a process has (x86-64 and ARM use 47 or 48 bits)."""


@lru_cache(_DESCRIBED)
def _description(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    index: int,
    thread: int,
) -> tuple[int, Any, Any]:
    """A DLManagedTensor that any number of tensors may be made of: address, struct, its sizes."""
    found = dtypes.from_torch(dtype).dlpack
    if found is None:
        raise UnsupportedDtype(f"tensors of {dtype} cannot be on this device")
    numbers = (ctypes.c_int64 * (2 * len(shape) or 1))(*shape, *strides)
    at = ctypes.addressof(numbers)
    # Nothing is freed with it, so that it needs no deleter.
    made = _DLManagedTensor(
        None,
        _EXTENSION_DEVICE,
        index,
        len(shape),
        *found,
        1,
        at,
        at + 8 * len(shape),
        0,
        None,
        None,
    )
    return ctypes.addressof(made), made, numbers


def tensor_without_memory(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, index: int
) -> torch.Tensor:
    """A tensor on the device with this index, over a storage of its own.

    Raises:
        UnsupportedDtype: DLPack does not have the element type.
    """
    # A thread has descriptions of its own, because each tensor's address is put there.
    address, description, _ = _description(shape, strides, dtype, index, threading.get_ident())
    description.data = next(_addresses)
    found: torch.Tensor = torch._C._from_dlpack(_new_capsule(address, b"dltensor", None))
    return found


_ON_HOST = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

VIEWS = (
    "aten.as_strided.default",
    "aten.view.default",
    "aten._reshape_alias.default",
    "aten.unfold.default",
    "aten.view.dtype",
    "aten.view_as_real.default",
    "aten.view_as_complex.default",
    "aten.set_.source_Storage_storage_offset",
)
"""Operators whose kernels for the host read sizes and strides alone, and fit any device."""


def kernel_of(name: str) -> Callable[..., Any]:
    """The kernel for the host of one of `VIEWS`."""
    op = operator(name)
    assert op is not None
    return partial(op.redispatch, _ON_HOST)


def copy_waiting(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """`aten._to_copy` that waits: for others torch asks C++ of the device for pinned memory."""
    options["non_blocking"] = False
    copied: torch.Tensor = torch.ops.aten._to_copy.default.redispatch(
        _ON_HOST, with_shape(tensor), **options
    )
    return copied


def with_shape(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements; parameters of lazy modules tell nobody their shape, which is (0,)."""
    if not torch.nn.parameter.is_lazy(tensor):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach()


def composed(op: OpOverload, *arguments: Any, **options: Any) -> torch.Tensor:
    """What torch makes of an operator such as `aten.empty_like` by `empty`."""
    made: torch.Tensor = op.redispatch(_ON_HOST, *arguments, **options)
    return made


_BY_HELPERS = ("aten::cummax", "aten::cummin", "aten::logcumsumexp")

_OF_KNOWN_DEVICES = ("aten::mode.values",)
"""Operators that write into arguments, and that refuse devices that they do not know."""


def composed_operators() -> Iterator[OpOverload]:
    """The operators that torch would compute by others, though the host has a kernel for each.

    Most would be `empty` and the overload `out`; layer norm a batch norm, whose result lies
    otherwise. A fallback for all operators does not get them, unless it is registered for each.
    Some are computed by operators that a graph cannot have, or that have no program.
    """
    known = set(torch._C._dispatch_get_all_op_names())
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        writes = schema.is_mutable or any(argument.alias_info for argument in schema.arguments)
        if writes and full not in _OF_KNOWN_DEVICES:
            continue
        if full in known and (
            full in (*_BY_HELPERS, *_OF_KNOWN_DEVICES)
            or has(full, "CompositeExplicitAutogradNonFunctional")
            or (has(full, "CompositeExplicitAutograd") and has(full, "CPU"))
        ):
            packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
            yield getattr(packet, schema.overload_name or "default")


def takes_numbers(op: OpOverload) -> bool:
    """Whether an operator takes numbers of Python for tensors."""
    name = op._schema.name.partition("::")[2]
    return bool(torch._C._should_allow_numbers_as_tensors(name))


def trace_call(
    call: Callable[..., Any],
    promises: Sequence[Any],
    table: Mapping[Any, Callable[..., Any]],
) -> torch.fx.GraphModule:
    """The functional graph of a function of tensors; what it writes into arguments ends the graph.

    Args:
        call: gives a list of tensors.
        promises: fake tensors and symbolic numbers, of one mode, for its arguments.
        table: decompositions.

    Raises:
        Exception: what an operator raises for tensors of these shapes and types.
    """
    with seen_by_python(), torch.no_grad(), errors_unlogged():
        return trace_beside_others(functionalize(call), promises, table)


def seen_by_python() -> AbstractContextManager[Any]:
    """Tensors without memory are not computed with, also where torch hides them from Python.

    Torch excludes these keys while it makes tensors of Python's data, and while it runs a kernel
    for what a tensor without memory promises; both call operators of the device.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _OF_PYTHON:
        excluded = excluded.remove(key)
    found: AbstractContextManager[Any] = torch._C._ForceDispatchKeyGuard(
        torch._C._dispatch_tls_local_include_set(), excluded
    )
    return found


def unseen_by_overrides() -> AbstractContextManager[Any]:
    """What is called of torch inside is none of a user's `__torch_function__`, nor of a mode."""
    found: AbstractContextManager[Any] = torch._C.DisableTorchFunction()
    return found


_OF_PYTHON = (
    torch._C.DispatchKey.Python,
    torch._C.DispatchKey.PythonTLSSnapshot,
    torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode,
    torch._C.DispatchKey.FuncTorchDynamicLayerBackMode,
)


def backward_pass() -> int:
    """The number of the backward pass of which this thread computes a part; -1 of none."""
    return torch._C._current_graph_task_id()


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether other tensors have the storage of a tensor, too."""
    storage = tensor.untyped_storage()
    # The tensor and the Python object count.
    return int(torch._C._storage_Use_Count(storage._cdata)) > 2
