"""Executable: a compiled program that is loaded for devices of a client.

Every call goes through `pjrt_bridge.runtime.arguments` first, because plugins run wrong arguments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pjrt_bridge import dtypes
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import (
    NamedValue,
    decode_named_values,
    free,
    int64s,
    pointers,
    read_int64s,
    read_pointers,
    text,
)
from pjrt_bridge.errors import Closed, PjrtBridgeError, PjrtError, SignatureMismatch
from pjrt_bridge.runtime.arguments import Arguments
from pjrt_bridge.runtime.buffer import Buffer
from pjrt_bridge.runtime.device import Device
from pjrt_bridge.runtime.event import Event
from pjrt_bridge.runtime.handles import Handle, defer, pin_all, unpin_all
from pjrt_bridge.runtime.layout import Layout
from pjrt_bridge.runtime.serialized import Header, pack
from pjrt_bridge.stablehlo.types import Result, Signature, TensorType

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
            api, "LoadedExecutable", pointer, client.handle, argument="executable", pinned=True
        )
        try:
            inner = api.call("LoadedExecutable_GetExecutable", loaded_executable=pointer).executable
            # The program's description is owned apart from the loaded one, but ends with it.
            self._inner = Handle(
                api, "Executable", inner, self._loaded, argument="executable", pinned=True
            )
            try:
                self._describe()
            finally:
                self._inner.unpin()
        finally:
            self._loaded.unpin()

    def _describe(self) -> None:
        api, inner = self.client.api, self._inner.pointer
        self.devices = self._assigned_devices() or self.client.devices[:1]
        partitions = api.call("Executable_NumPartitions", executable=inner).num_partitions
        # With one partition the compiler ignores shardings.
        self._sharded = partitions > 1
        self.outputs = self._output_types()
        self._arguments = Arguments(self.name, self.signature, self.client, sharded=self._sharded)
        self._layouts: tuple[tuple[Layout, tuple[int, ...] | None], ...] | None = None
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
            TensorType(result.shard_shape, result.type.dtype) if self._sharded else result.type
            for result in self.signature.results
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
            DataError: `device` belongs to another client.
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
        return self.devices[0] if device is None else self.client.place(device, None)

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
        demands = self._arguments
        for buffers, device in zip(lists, devices, strict=True):
            demands.check(buffers, device)
        donated, kept = demands.donation(lists, donate)
        api = self.client.api
        handles = [buffer.handle for buffers in lists for buffer in buffers]
        handles.append(self._loaded)
        if gone := pin_all(handles):
            raise self._unavailable(gone, lists)
        try:
            columns = [pointers([buffer.handle.pointer for buffer in row]) for row in lists]
            arguments = pointers([ctypes.addressof(column) for column in columns])
            rows = [pointers([None] * len(self.outputs)) for _ in lists]
            results = pointers([ctypes.addressof(row) for row in rows])
            ends = pointers([None] * len(lists))
            options = self._options_keeping(kept) if kept else self._options
            api.call(
                "LoadedExecutable_Execute",
                executable=self._loaded.pointer,
                options=ctypes.addressof(options),
                argument_lists=ctypes.addressof(arguments),
                num_devices=len(lists),
                num_args=len(demands.types),
                output_lists=ctypes.addressof(results),
                device_complete_events=ctypes.addressof(ends) if watch else None,
                execute_device=devices[0].pointer if self.portable else None,
            )
            outputs = tuple(map(self._wrap, rows, devices))
            events = [Event(api, end, self.client.handle) for end in ends] if watch else []
            # All results of one device come together, so one of them is enough to watch.
            for made in outputs:
                if made:
                    made[0].handle.running = True
            if not self.outputs:
                for event in events:
                    event.outlive()
            for index in donated:
                self._mark_donated([buffers[index] for buffers in lists])
        finally:
            unpin_all(handles)
        return outputs, events

    def _unavailable(self, gone: Handle, lists: Sequence[Sequence[Buffer]]) -> PjrtBridgeError:
        for buffers in lists:
            for buffer in buffers:
                if buffer.handle is gone:
                    return buffer.unavailable()
        return self._closed()

    def _closed(self) -> Closed:
        return Closed(f"executable {self.name!r} was closed")

    def _wrap(self, row: Sequence[int | None], device: Device) -> tuple[Buffer, ...]:
        if self._layouts is None:
            self._layouts = tuple(map(self._result_layout, row, self.signature.results))
        return tuple(
            Buffer(
                self.client,
                pointer,
                type,
                device,
                layout=layout,
                custom_layout=custom,
                dynamic=bool(result.dynamic),
            )
            for pointer, type, result, (layout, custom) in zip(
                row, self.outputs, self.signature.results, self._layouts, strict=True
            )
        )

    def _result_layout(
        self, pointer: int | None, result: Result
    ) -> tuple[Layout, tuple[int, ...] | None]:
        """The layout of one result, which is that of the later ones too, and if it is custom."""
        layout = Layout.of_buffer(self.client.api, pointer, result.type.rank)
        # Only the plugin knows what became of mhlo.layout_mode = "auto".
        order = layout.minor_to_major if self.client.shares_host_memory else result.layout
        return layout, self.client.custom_layout(order)

    def _options_keeping(self, kept: Sequence[int]) -> Any:
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
        with self._held() as pointer:
            found = self.client.api.call("Executable_Serialize", executable=pointer)
            blob = ctypes.string_at(found.serialized_bytes, found.serialized_bytes_size)
            free(found.serialized_executable_deleter, found.serialized_executable)
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
        with self._held() as pointer:
            found = self.client.api.call("Executable_GetCostAnalysis", executable=pointer)
            return decode_named_values(found.properties, found.num_properties)

    def memory_stats(self) -> MemoryStats:
        """Device memory that one execution needs.

        Raises:
            Unimplemented: the plugin does not tell.
            Closed: the executable was closed.
        """
        with self._held() as pointer:
            found = self.client.api.call("Executable_GetCompiledMemoryStats", executable=pointer)
        return MemoryStats(
            generated_code=int(found.generated_code_size_in_bytes),
            arguments=int(found.argument_size_in_bytes),
            outputs=int(found.output_size_in_bytes),
            aliased=int(found.alias_size_in_bytes),
            temporaries=int(found.temp_size_in_bytes),
        )

    def parameter_memory_kinds(self) -> tuple[str, ...]:
        """Kind of the memory space that each argument has to be in (PJRT API 0.102).

        Raises:
            Unimplemented: the plugin does not tell.
            Closed: the executable was closed.
        """
        with self._held() as pointer:
            found = self.client.api.call("Executable_ParameterMemoryKinds", executable=pointer)
            count = int(found.num_parameters)
            kinds = read_pointers(found.memory_kinds, count)
            sizes = read_int64s(found.memory_kind_sizes, count)
            return tuple(text(kind, size) for kind, size in zip(kinds, sizes, strict=True))

    def fingerprint(self) -> str:
        """The plugin's fingerprint of the compiled program.

        Raises:
            Unimplemented: the plugin makes none.
            Closed: the executable was closed.
        """
        with self._held() as pointer:
            found = self.client.api.call("Executable_Fingerprint", executable=pointer)
            return text(found.executable_fingerprint, found.executable_fingerprint_size)

    @contextmanager
    def _held(self) -> Iterator[int]:
        """The plugin's description of the program, kept during a `with` block."""
        if pin_all((self._loaded, self._inner)):
            raise self._closed()
        try:
            yield self._inner.pointer
        finally:
            unpin_all((self._loaded, self._inner))

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
