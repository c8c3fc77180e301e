"""Executable: a compiled program that is loaded for devices of a client.

Every call goes through `pjrt_bridge.runtime.arguments` first, because plugins run wrong arguments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pjrt_bridge import dtypes
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import (
    NamedValue,
    decode_named_values,
    int64s,
    pointers,
    read_int64s,
    read_pointers,
    text,
)
from pjrt_bridge.errors import Closed, PjrtError, SignatureMismatch
from pjrt_bridge.runtime.arguments import Arguments
from pjrt_bridge.runtime.buffer import Buffer
from pjrt_bridge.runtime.device import Device
from pjrt_bridge.runtime.event import Event
from pjrt_bridge.runtime.handles import Handle, defer
from pjrt_bridge.runtime.serialized import Header, pack
from pjrt_bridge.stablehlo.types import Signature, TensorType

if TYPE_CHECKING:
    from pjrt_bridge.runtime.client import Client


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes that one execution needs, by the compiler's account."""

    generated_code: int
    arguments: int
    outputs: int
    aliased: int
    temporaries: int


class Executable:
    """A program that was compiled and loaded for devices of a client.

    Attributes:
        client: the client that compiled it.
        name: of the program.
        signature: parameters and results of the program.
        devices: devices that one execution uses, replicas outermost; of a portable executable the
            one that calls use by default.
        portable: each call may choose its device.
        outputs: shapes (per device) and types of the results.
    """

    def __init__(
        self, client: Client, pointer: int, signature: Signature, name: str, portable: bool
    ) -> None:
        api = client.api
        self.client = client
        self.name = name
        self.signature = signature
        self.portable = portable
        self._loaded = Handle(
            api, "LoadedExecutable", pointer, client.handle, argument="executable"
        )
        inner = api.call("LoadedExecutable_GetExecutable", loaded_executable=pointer).executable
        # The program's description is owned apart from the loaded one, but ends with it.
        self._inner = Handle(api, "Executable", inner, self._loaded, argument="executable")
        self.devices = self._assigned_devices() or client.devices[:1]
        self.outputs = self._output_types()
        self._arguments = Arguments(name, signature, client)
        self._options = STRUCTS["PJRT_ExecuteOptions"].new()

    def _assigned_devices(self) -> tuple[Device, ...]:
        api = self.client.api
        try:
            found = api.call("LoadedExecutable_AddressableDevices", executable=self._loaded.pointer)
        except PjrtError:
            return ()
        listed = read_pointers(found.addressable_devices, found.num_addressable_devices)
        return tuple(self.client.device_of(pointer) for pointer in listed)

    def _output_types(self) -> tuple[TensorType, ...]:
        api, inner = self.client.api, self._inner.pointer
        declared = tuple(
            TensorType(result.shard_shape, result.type.dtype) for result in self.signature.results
        )
        count = int(api.call("Executable_NumOutputs", executable=inner).num_outputs)
        if count != len(declared):
            raise SignatureMismatch(
                f"executable {self.name!r}: the plugin returns {count} results, "
                f"the program has {len(declared)}"
            )
        try:
            kinds = api.call("Executable_OutputElementTypes", executable=inner)
            dims = api.call("Executable_OutputDimensions", executable=inner, num_outputs=count)
        except PjrtError:
            return declared
        codes = (ctypes.c_int * count).from_address(kinds.output_types) if count else ()
        ranks = read_int64s(dims.dim_sizes, count)
        sizes = read_int64s(dims.dims, sum(ranks))
        found, start = [], 0
        for code, rank in zip(codes, ranks, strict=True):
            found.append(TensorType(sizes[start : start + rank], dtypes.from_code(code)))
            start += rank
        return tuple(found)

    # -- running ---------------------------------------------------------------------------------

    def __call__(self, *arrays: Any) -> tuple[Buffer, ...]:
        """Run on arrays of any kind that `Client.put` takes, or buffers.

        Returns before the results are computed; reading a result waits.

        Raises:
            SignatureMismatch: the arguments differ from the signature.
            BufferUnavailable: an argument was donated or deleted before.
        """
        self._arguments.check_count(arrays)
        device = self.devices[0]
        return self.execute([self.client.put(array, device) for array in arrays])

    def execute(
        self,
        buffers: Sequence[Buffer],
        *,
        donate: Collection[int] | None = None,
        device: Device | None = None,
    ) -> tuple[Buffer, ...]:
        """Run on one device. Returns at once, but waits for a program that has no results.

        Args:
            buffers: the arguments.
            donate: indices of arguments that the execution may consume, among those that the
                program donates; None means all of these.
            device: where to run a portable executable.

        Raises:
            SignatureMismatch: number, type, shape, layout, device or donation of an argument.
            BufferUnavailable: an argument was donated or deleted before.
            PjrtError: the plugin failed.
        """
        where = self._one_device(device)
        (outputs,), events = self._execute([buffers], (where,), donate, watch=not self.outputs)
        _wait(events)
        return outputs

    def submit(
        self,
        buffers: Sequence[Buffer],
        *,
        donate: Collection[int] | None = None,
        device: Device | None = None,
    ) -> tuple[tuple[Buffer, ...], Event]:
        """`execute`, and the event of the whole execution's end.

        Raises:
            As `execute`; a failure of the execution itself comes from the event.
        """
        where = self._one_device(device)
        (outputs,), (event,) = self._execute([buffers], (where,), donate, watch=True)
        return outputs, event

    def _one_device(self, device: Device | None) -> Device:
        if device is not None and not self.portable:
            raise SignatureMismatch(
                f"executable {self.name!r} was compiled for {list(self.devices)}; compile with "
                "CompileOptions(portable=True) to choose a device in each call"
            )
        if len(self.devices) != 1:
            raise SignatureMismatch(
                f"executable {self.name!r} runs on {len(self.devices)} devices; use execute_sharded"
            )
        return device or self.devices[0]

    def execute_sharded(
        self, buffers: Sequence[Sequence[Buffer]], *, donate: Collection[int] | None = None
    ) -> tuple[tuple[Buffer, ...], ...]:
        """Run on all devices of the executable.

        Args:
            buffers: for each of `devices`, the arguments that live there, with the shape of one
                shard.
            donate: as in `execute`.

        Returns:
            For each device the results there.

        Raises:
            As `execute`.
        """
        if len(buffers) != len(self.devices):
            raise SignatureMismatch(
                f"executable {self.name!r}: found arguments for {len(buffers)} devices, "
                f"expected {len(self.devices)}"
            )
        outputs, events = self._execute(buffers, self.devices, donate, watch=not self.outputs)
        _wait(events)
        return outputs

    def _execute(
        self,
        lists: Sequence[Sequence[Buffer]],
        devices: Sequence[Device],
        donate: Collection[int] | None,
        *,
        watch: bool,
    ) -> tuple[tuple[tuple[Buffer, ...], ...], list[Event]]:
        for buffers, device in zip(lists, devices, strict=True):
            self._arguments.check(buffers, device)
        donated, kept = self._arguments.donation(lists, donate)
        api = self.client.api
        held: list[Handle] = []
        try:
            columns = [self._hold(buffers, held) for buffers in lists]
            arguments = pointers([ctypes.addressof(column) for column in columns])
            self._hold_self(held)
            rows = [pointers([None] * len(self.outputs)) for _ in lists]
            ends = pointers([None] * len(lists)) if watch else None
            api.call(
                "LoadedExecutable_Execute",
                executable=self._loaded.pointer,
                options=self._options_for(kept),
                argument_lists=arguments,
                num_devices=len(lists),
                num_args=len(lists[0]),
                output_lists=pointers([ctypes.addressof(row) for row in rows]),
                device_complete_events=ends,
                execute_device=devices[0].pointer if self.portable else None,
            )
            results = tuple(
                self._wrap(row, device) for row, device in zip(rows, devices, strict=True)
            )
            events = [Event(api, end, self.client.handle) for end in ends or ()]
            for buffers in lists:
                self._mark_donated([buffers[index] for index in donated])
        finally:
            for handle in held:
                handle.unpin()
        return results, events

    def _hold(self, buffers: Sequence[Buffer], held: list[Handle]) -> Any:
        """Pin the arguments; their pointers as an array."""
        for buffer in buffers:
            buffer.held().__enter__()
            held.append(buffer.handle)
        return pointers([buffer.handle.pointer for buffer in buffers])

    def _hold_self(self, held: list[Handle]) -> None:
        try:
            self._loaded.pin()
        except Closed:
            raise Closed(f"executable {self.name!r} was closed") from None
        held.append(self._loaded)

    def _wrap(self, row: Any, device: Device) -> tuple[Buffer, ...]:
        made = []
        for pointer, type, result in zip(row, self.outputs, self.signature.results, strict=True):
            layout = result.layout
            if layout == tuple(reversed(range(type.rank))):
                layout = None
            made.append(Buffer(self.client, pointer, type, device, custom_layout=layout))
        return tuple(made)

    def _options_for(self, kept: Sequence[int]) -> Any:
        if not kept:
            return self._options
        indices = int64s(kept)
        options = STRUCTS["PJRT_ExecuteOptions"].new(
            non_donatable_input_indices=ctypes.addressof(indices),
            num_non_donatable_input_indices=len(kept),
        )
        options._indices = indices
        return options

    def _mark_donated(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            pointer = buffer.handle.pointer
            if self.client.api.call("Buffer_IsDeleted", buffer=pointer).is_deleted:
                buffer.mark_donated(f"executable {self.name!r}")

    # -- description -----------------------------------------------------------------------------

    def serialize(self) -> bytes:
        """The compiled program, for `Client.deserialize` of the same plugin in any process.

        Raises:
            Unimplemented: the plugin cannot serialize.
            Closed: the executable was closed.
        """
        api = self.client.api
        self._loaded.pin()
        try:
            found = api.call("Executable_Serialize", executable=self._inner.pointer)
            blob = ctypes.string_at(found.serialized_bytes, found.serialized_bytes_size)
            free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(found.serialized_executable_deleter)
            free(found.serialized_executable)
        finally:
            self._loaded.unpin()
        header = Header(
            name=self.name,
            platform=self.client.platform,
            portable=self.portable,
            signature=self.signature.to_json(),
        )
        return pack(header, blob)

    def cost(self) -> dict[str, NamedValue]:
        """The compiler's estimate of one execution: flops, bytes accessed, ... by its own names.

        Raises:
            Unimplemented: the plugin does not estimate.
            Closed: the executable was closed.
        """
        found = self._ask("Executable_GetCostAnalysis")
        return decode_named_values(found.properties, found.num_properties)

    def memory_stats(self) -> MemoryStats:
        """Device memory that one execution needs.

        Raises:
            Unimplemented: the plugin does not tell.
            Closed: the executable was closed.
        """
        found = self._ask("Executable_GetCompiledMemoryStats")
        return MemoryStats(
            generated_code=int(found.generated_code_size_in_bytes),
            arguments=int(found.argument_size_in_bytes),
            outputs=int(found.output_size_in_bytes),
            aliased=int(found.alias_size_in_bytes),
            temporaries=int(found.temp_size_in_bytes),
        )

    def fingerprint(self) -> str:
        """The plugin's fingerprint of the compiled program.

        Raises:
            Unimplemented: the plugin makes none.
            Closed: the executable was closed.
        """
        found = self._ask("Executable_Fingerprint")
        return text(found.executable_fingerprint, found.executable_fingerprint_size)

    def _ask(self, function: str) -> Any:
        self._loaded.pin()
        try:
            return self.client.api.call(function, executable=self._inner.pointer)
        finally:
            self._loaded.unpin()

    def close(self) -> None:
        """Unload the program; executions that are under way go on."""
        self._loaded.release()

    def __enter__(self) -> Executable:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        handle: Handle | None = getattr(self, "_loaded", None)
        if handle is not None and not handle.released:
            defer(handle.release)

    def __repr__(self) -> str:
        parameters = ", ".join(str(parameter.type) for parameter in self.signature.parameters)
        results = ", ".join(str(result.type) for result in self.signature.results)
        return f"<Executable {self.name!r} ({parameters}) -> ({results})>"


def _wait(events: Sequence[Event]) -> None:
    for event in events:
        try:
            event.wait()
        finally:
            event.close()
