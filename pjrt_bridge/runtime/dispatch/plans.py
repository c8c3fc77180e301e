"""Plans: what the dispatcher in C knows of one executable.

A plan says once what `Executable.submit` finds out in every call: that arguments in these forms are
what the program takes, where the plugin's functions are, and how the results become tensors. It is
made for plugins that use host memory in place and programs on one device; for all others, and where
the module was not built, there is none.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.functions import FUNCTIONS, offset_of
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import Closed, PjrtBridgeError, PluginIncompatible
from pjrt_bridge.runtime import native
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.ownership import pending
from pjrt_bridge.runtime.ownership.handles import BUNDLE, Finalizer, Handle, release_soon
from pjrt_bridge.runtime.ownership.leases import offer_lease
from pjrt_bridge.stablehlo.types import Signature, TensorType

enabled = True
"""Whether plans are made; tests turn it off."""


@dataclass(frozen=True, slots=True)
class BoundParameter:
    """A parameter of a program, and what it is given.

    Attributes:
        position: of its value among those that a call gives; None for a constant.
        spec: what the value is in memory.
        written: the program writes its new value into this memory, where it can be used in place.
    """

    position: int | None
    spec: ValueSpec
    written: bool = False


def _ignore(tensors: tuple[Any, ...]) -> None:
    """A framework that keeps no count of writes."""


@dataclass(frozen=True, slots=True)
class Framework:
    """How a framework with DLPack's exchange API lets its tensors be read and made.

    Attributes:
        exchange: its DLPackExchangeAPI, a capsule.
        tensor: the class that it belongs to.
        is_lazy: says of a tensor that its memory does not hold its values as they are.
        is_lazy_complex: the same for programs with complex numbers, which takes longer.
        owner: gives an object that keeps a tensor's memory.
        resizing: where a tensor keeps what lets the framework resize memory that it was made over,
            as `resizing.h` has it; None: it cannot.
        wrote: told of tensors that were written into in their memory.
        idle_threads: where a function ends threads that keep their cores without work, and of how
            many nanoseconds a program is before which it is called, as `idle_threads.h` has it;
            None: there are none.
    """

    exchange: object
    tensor: type
    is_lazy: Callable[[Any], bool]
    is_lazy_complex: Callable[[Any], bool]
    owner: Callable[[Any], object]
    resizing: tuple[int, ...] | None = None
    wrote: Callable[[tuple[Any, ...]], object] = _ignore
    idle_threads: tuple[int, int] | None = None

    def parts(self, given: Iterable[DType]) -> tuple[Any, ...]:
        """What `_dispatch.Plan` takes, for values of these element types."""
        is_complex = any(dtype.is_complex for dtype in given)
        is_lazy = self.is_lazy_complex if is_complex else self.is_lazy
        reading = self.tensor, self.exchange, is_lazy, self.owner
        return *reading, None, None, self.resizing, self.wrote, self.idle_threads

    def takes(self, dtype: DType) -> bool:
        """Whether tensors of an element type can be read and made as they lie."""
        return dtype.dlpack is not None


@dataclass(frozen=True, slots=True)
class Capsules:
    """How a framework without it exchanges tensors: as DLPack's capsules named "dltensor".

    Such a capsule holds a DLManagedTensor, as DLPack had it before its version 1.0. What `adopt`
    gets is aligned to 64 bytes, and dense as its `ValueSpec` says.

    Attributes:
        tensor: the class of its tensors.
        export: gives a capsule that keeps the memory of a tensor until it is dropped; None, or an
            exception, for a tensor that cannot be read as it lies.
        adopt: makes a tensor of a capsule, which is its own then.
    """

    tensor: type
    export: Callable[[Any], object]
    adopt: Callable[[Any], Any]

    def parts(self, given: Iterable[DType]) -> tuple[Any, ...]:
        """What `_dispatch.Plan` takes, for values of these element types."""
        return self.tensor, None, None, None, self.export, self.adopt, None, None, None

    def takes(self, dtype: DType) -> bool:
        """Whether tensors of an element type can be read and made as they lie."""
        # Floats of eight bits came to DLPack with the capsules of other names.
        return dtype.dlpack is not None and not (dtype.is_float and dtype.bits == 8)


class PinnedBuffers:
    """Buffers of arguments that stay from call to call, as the dispatcher takes them.

    Args:
        buffers: for each parameter its buffer, None where the value of a call is taken.
        addresses: for each parameter the address that its value has to have still.

    Attributes:
        parts: what `Plan.launch` takes. They may outlive this object, in a thread that calls while
            another one pins other buffers.

    Raises:
        Closed: one of the buffers was deleted, with its client say.
    """

    __slots__ = ("_addresses", "_buffers", "parts")

    def __init__(self, buffers: Sequence[Buffer | None], addresses: Sequence[int]) -> None:
        self._buffers = buffers
        self._addresses = addresses
        handles = [buffer.handle for buffer in buffers if buffer is not None]
        bundle = _PinnedHandles(handles) if handles else None
        pointers = [0 if buffer is None else buffer.handle.pointer for buffer in buffers]
        layout = f"{len(pointers)}P"
        self.parts = (
            bundle,
            struct.pack(layout, *pointers),
            struct.pack(layout, *addresses),
            _Release(bundle),
        )

    def find(self, parameter: int, address: int) -> Buffer | None:
        """The buffer of a parameter, if it is over the memory at this address."""
        return self._buffers[parameter] if self._addresses[parameter] == address else None


class _Release:
    """Releases a handle with the last reference to this object."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle | None) -> None:
        self._handle = handle

    def __del__(self, release_soon: Finalizer = release_soon) -> None:
        release_soon(self._handle)


class _PinnedHandles(Handle):
    """Buffers of one client that are kept from being destroyed as one."""

    __slots__ = ("_members",)

    def __init__(self, members: Sequence[Handle]) -> None:
        first = members[0]
        super().__init__(first.api, BUNDLE, first.parent)
        self._members = members
        with self:
            self.own(first.pointer)
            for member in members:
                member.hold(self)
            offer_lease(self)

    def _destroy(self) -> None:
        for member in self._members:
            member.let_go(self)


@dataclass(frozen=True, slots=True)
class PlannedExecutable:
    """An executable, as a plan needs it.

    Attributes:
        name: for messages.
        client: its client.
        loaded: its handle.
        options: its PJRT_ExecuteOptions.
        signature: parameters and results of the program.
        outputs: types of the results, on one device.
        device: the one that it runs on; None where it runs on several, or on any.
    """

    name: str
    client: ClientCore
    loaded: Handle
    options: Any
    signature: Signature
    outputs: Sequence[TensorType]
    device: Device | None


def plan(
    target: PlannedExecutable,
    parameters: Sequence[BoundParameter],
    results: Sequence[ValueSpec],
    framework: Framework | Capsules,
    *,
    targets: Sequence[int | None] | None = None,
    on_device: bool = False,
) -> Any:
    """A `_dispatch.Plan` for an executable, or None where it takes the general path.

    Args:
        target: what to launch.
        parameters: of the program.
        results: of the program.
        framework: where the tensors come from.
        targets: see `Executable.plan`.
        on_device: arguments and results are on the device, and nothing is read there.
    """
    client, loaded, device = target.client, target.loaded, target.device
    signature = target.signature
    specs = [*(item.spec for item in parameters), *results]
    found = native.module
    if (
        found is None
        or not enabled
        or not (on_device or client.shares_host_memory)
        or device is None
        or [item.written for item in parameters]
        != [parameter.donation != "kept" for parameter in signature.parameters]
        or any(parameter.layout is not None for parameter in signature.parameters)
        or any(result.layout is not None for result in signature.results)
        or any(result.dynamic for result in signature.results)
        or not all(on_device or framework.takes(spec.type.dtype) for spec in specs)
        or any(spec.type.dtype.dlpack is None for spec in specs)
        or [item.spec.memory for item in parameters]
        != [parameter.type for parameter in signature.parameters]
        or [spec.memory for spec in results] != list(target.outputs)
        or not all(map(client.api.has, found.FUNCTIONS))
    ):
        return None
    offer_lease(loaded)
    offer_lease(client.handle)
    numbers = [_numbers(item.spec, item.position, written=item.written) for item in parameters]
    targets = targets if targets is not None else [None] * len(results)
    numbers += [_numbers(spec, target) for spec, target in zip(results, targets, strict=True)]
    flat = [number for form in numbers for number in form]
    return found.Plan(
        tuple(_entry(client.api, name) for name in found.FUNCTIONS),
        client.handle,
        loaded,
        client.handle.pointer,
        loaded.pointer,
        device.pointer,
        ctypes.addressof(target.options),
        target.options,
        partial(_failure, client.api),
        partial(_refusal, client.api, target.name),
        pending.queue.append,
        framework.parts(spec.type.dtype for spec in specs),
        len(parameters),
        len(results),
        struct.pack(f"{len(flat)}q", *flat),
    )


def replace(plan: Any, loaded: Handle) -> None:
    """Have a plan launch another loaded program, with the same parameters and results."""
    offer_lease(loaded)
    plan.replace(loaded, loaded.pointer)


def _entry(api: Api, function: str) -> tuple[int, int]:
    declared = FUNCTIONS[function]
    assert declared is not None
    return ctypes.c_size_t.from_address(api.address + offset_of(function)).value, declared.size


def _numbers(spec: ValueSpec, position: int | None, *, written: bool = False) -> list[int]:
    dtype = spec.type.dtype
    assert dtype.dlpack is not None
    return [
        dtype.code,
        *dtype.dlpack,
        spec.nbytes,
        -1 if position is None else position,
        int(written),
        spec.type.rank,
        *spec.once.shape,
        *spec.dense_strides,
        *spec.memory.shape,
        *spec.type.shape,
        *spec.strides,
    ]


def _failure(api: Api, error: int, function: str, made: str) -> PjrtBridgeError:
    if error:
        return api.error(error, function)
    return PluginIncompatible(f"plugin {api.plugin!r}: {function} made {made}")


def _refusal(api: Api, name: str) -> PjrtBridgeError:
    api.check_process()
    return Closed(f"executable {name!r} was closed")
