"""Launches through the compiled module: tensors in, tensors out, nothing else in between.

A plan says once what `Executable.submit` finds out in every call: that arguments in these forms are
what the program takes, where the plugin's functions are, and how the results become tensors. It is
made for plugins that use host memory in place and programs on one device; for all others, and where
the module was not built, there is none.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.functions import FUNCTIONS, offset_of
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import Closed, PjrtBridgeError, PluginIncompatible
from pjrt_bridge.runtime.dispatch import native
from pjrt_bridge.runtime.ownership import pending
from pjrt_bridge.runtime.ownership.handles import (
    BUNDLE,
    Finalizer,
    Handle,
    pin_all,
    release_soon,
    unpin_all,
)
from pjrt_bridge.runtime.transfers.layout import Layout
from pjrt_bridge.stablehlo.types import TensorType

if TYPE_CHECKING:
    from pjrt_bridge.runtime.objects.buffer import Buffer
    from pjrt_bridge.runtime.objects.executable import Executable

enabled = True
"""Whether plans are made; tests turn it off."""


@dataclass(frozen=True, slots=True)
class Array:
    """How the elements of an argument or a result lie in host memory: densely, in some order.

    Attributes:
        type: shape and type of the row-major array in memory, which is what the program knows.
        shape: elements per dimension as the framework's graph sees them.
        strides: of these dimensions, in elements.
    """

    type: TensorType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def row_major(type: TensorType) -> Array:
        """The array as the program knows it."""
        return Array(type, type.shape, Layout.default(type.rank).strides(type.shape))


@dataclass(frozen=True, slots=True)
class Given:
    """A parameter of the program.

    Attributes:
        position: of its value among those that a call gives; None where it is kept once for all.
        array: what it is in memory.
        written: the program writes its new value into this memory, where it can be used in place.
    """

    position: int | None
    array: Array
    written: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """A result of the program, as an array in memory, and shape and strides of the tensor over it.

    The tensor may repeat elements (stride 0).
    """

    array: Array
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Framework:
    """How a framework with DLPack's exchange API lets its tensors be read and made.

    Attributes:
        exchange: its DLPackExchangeAPI, a capsule.
        tensor: the class that it belongs to.
        is_lazy: says of a tensor that its memory does not hold its values as they are.
        owner: gives an object that keeps a tensor's memory.
        resizing: where a tensor keeps what lets the framework resize memory that it was made over,
            as `resizing.h` has it; None: it cannot.
    """

    exchange: object
    tensor: type
    is_lazy: Callable[[Any], bool]
    owner: Callable[[Any], object]
    resizing: tuple[int, ...] | None = None

    @property
    def parts(self) -> tuple[Any, ...]:
        """What `_dispatch.Plan` takes."""
        return self.tensor, self.exchange, self.is_lazy, self.owner, None, None, self.resizing

    def takes(self, dtype: DType) -> bool:
        """Whether tensors of an element type can be read and made as they lie."""
        # Complex tensors may be conjugated lazily, which `is_lazy` need not tell.
        return dtype.dlpack is not None and not dtype.is_complex


@dataclass(frozen=True, slots=True)
class Capsules:
    """How a framework without it exchanges tensors: as DLPack's capsules named "dltensor".

    Such a capsule holds a DLManagedTensor, as DLPack had it before its version 1.0. What `adopt`
    gets is aligned to 64 bytes, and dense as its `Made` says.

    Attributes:
        tensor: the class of its tensors.
        export: gives a capsule that keeps the memory of a tensor until it is dropped; None, or an
            exception, for a tensor that cannot be read as it lies.
        adopt: makes a tensor of a capsule, which is its own then.
    """

    tensor: type
    export: Callable[[Any], object]
    adopt: Callable[[Any], Any]

    @property
    def parts(self) -> tuple[Any, ...]:
        """What `_dispatch.Plan` takes."""
        return self.tensor, None, None, None, self.export, self.adopt, None

    def takes(self, dtype: DType) -> bool:
        """Whether tensors of an element type can be read and made as they lie."""
        # Floats of eight bits came to DLPack with the capsules of other names.
        return dtype.dlpack is not None and not (dtype.is_float and dtype.bits == 8)


class Kept:
    """Arguments that stay from call to call: one thing for the dispatcher to look at.

    Args:
        buffers: for each parameter its buffer, None where the value of a call is taken.
        addresses: for each parameter the memory that its value has to be in still.

    Attributes:
        parts: what `Plan.launch` takes. They may outlive this object, in a thread that calls while
            another one replaces what is kept.

    Raises:
        Closed: one of the buffers was deleted, with its client say.
    """

    __slots__ = ("_addresses", "_buffers", "parts")

    def __init__(self, buffers: Sequence[Buffer | None], addresses: Sequence[int]) -> None:
        self._buffers = buffers
        self._addresses = addresses
        handles = [buffer.handle for buffer in buffers if buffer is not None]
        bundle = _Bundle(handles) if handles else None
        pointers = [0 if buffer is None else buffer.handle.pointer for buffer in buffers]
        layout = f"{len(pointers)}P"
        self.parts = (
            bundle,
            struct.pack(layout, *pointers),
            struct.pack(layout, *addresses),
            _Owner(bundle),
        )

    def find(self, parameter: int, address: int) -> Buffer | None:
        """The buffer of a parameter, if its value is in this memory still."""
        return self._buffers[parameter] if self._addresses[parameter] == address else None


class _Owner:
    """Releases a handle when nobody has this object any more."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle | None) -> None:
        self._handle = handle

    def __del__(self, release_soon: Finalizer = release_soon) -> None:
        release_soon(self._handle)


class _Bundle(Handle):
    """Buffers of one client that are kept from being destroyed as one."""

    __slots__ = ("_members",)

    def __init__(self, members: Sequence[Handle]) -> None:
        if (gone := pin_all(members)) is not None:
            raise Closed(f"this {gone.kind} was closed")
        self._members = members
        first = members[0]
        super().__init__(first.api, BUNDLE, first.pointer, first.parent, argument="")
        self.offer_lease()

    def _give_back(self) -> None:
        unpin_all(self._members)


def plan(
    executable: Executable,
    loaded: Handle,
    options: Any,
    given: Sequence[Given],
    made: Sequence[Made],
    framework: Framework | Capsules,
) -> Any:
    """A `_dispatch.Plan` for an executable, or None where it takes the general path.

    Args:
        executable: what to launch.
        loaded: its handle.
        options: its PJRT_ExecuteOptions.
        given: its parameters.
        made: its results.
        framework: where the tensors come from.
    """
    client = executable.client
    arrays = [*(item.array for item in given), *(item.array for item in made)]
    found = native.module
    if (
        found is None
        or not enabled
        or not client.shares_host_memory
        or executable.portable
        or len(executable.devices) != 1
        or [item.written for item in given]
        != [parameter.donation != "kept" for parameter in executable.signature.parameters]
        or any(parameter.layout is not None for parameter in executable.signature.parameters)
        or any(result.layout is not None for result in executable.signature.results)
        or any(result.dynamic for result in executable.signature.results)
        or not all(framework.takes(array.type.dtype) for array in arrays)
        or [item.array.type for item in given]
        != [parameter.type for parameter in executable.signature.parameters]
        or [item.array.type for item in made] != list(executable.outputs)
        or not all(map(client.api.has, found.FUNCTIONS))
    ):
        return None
    loaded.offer_lease()
    client.handle.offer_lease()
    numbers = [_numbers(item.array, item.position, written=item.written) for item in given]
    numbers += [_numbers(item.array, None, item.shape, item.strides) for item in made]
    flat = [number for form in numbers for number in form]
    return found.Plan(
        tuple(_entry(client.api, name) for name in found.FUNCTIONS),
        client.handle,
        loaded,
        client.handle.pointer,
        loaded.pointer,
        executable.devices[0].pointer,
        ctypes.addressof(options),
        options,
        partial(_failure, client.api),
        partial(_refusal, client.api, executable.name),
        pending.queue.append,
        framework.parts,
        len(given),
        len(made),
        struct.pack(f"{len(flat)}q", *flat),
    )


def _entry(api: Api, function: str) -> tuple[int, int]:
    declared = FUNCTIONS[function]
    assert declared is not None
    return ctypes.c_size_t.from_address(api.address + offset_of(function)).value, declared.size


def _numbers(
    array: Array,
    position: int | None,
    shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    *,
    written: bool = False,
) -> list[int]:
    dtype = array.type.dtype
    assert dtype.dlpack is not None
    return [
        dtype.code,
        *dtype.dlpack,
        array.type.nbytes,
        -1 if position is None else position,
        int(written),
        len(array.shape),
        *array.shape,
        *array.strides,
        *array.type.shape,
        *(array.shape if shape is None else shape),
        *(array.strides if strides is None else strides),
    ]


def _failure(api: Api, error: int, function: str, made: str) -> PjrtBridgeError:
    if error:
        return api.error(error, function)
    return PluginIncompatible(f"plugin {api.plugin!r}: {function} made {made}")


def _refusal(api: Api, name: str) -> PjrtBridgeError:
    api.check_process()
    return Closed(f"executable {name!r} was closed")
