"""Executable: a compiled program that is loaded for devices of a client.

What a compiler says of a program, loaded or not, is in `pjrt_bridge.runtime.objects.compiled`.

Every call goes through `pjrt_bridge.runtime.dispatch.arguments` first, because plugins run wrong
arguments, and its results go through `pjrt_bridge.runtime.dispatch.results`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.errors import (
    Closed,
    DataError,
    SignatureMismatch,
    UnsupportedDtype,
)
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.buffers.putting import put
from pjrt_bridge.runtime.compile.identity import library_hash, processor
from pjrt_bridge.runtime.core import description
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device, memory_limit
from pjrt_bridge.runtime.core.event import Event
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.runtime.dispatch.arguments import Arguments
from pjrt_bridge.runtime.dispatch.direct import End
from pjrt_bridge.runtime.dispatch.executing import Executor, closed
from pjrt_bridge.runtime.dispatch.results import Results
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.compiled import Compiled
from pjrt_bridge.runtime.ownership.handles import (
    Finalizer,
    Handle,
    release_soon,
)
from pjrt_bridge.runtime.ownership.kinds import require_kind
from pjrt_bridge.stablehlo.types import Signature
from pjrt_bridge.wrong_arguments import checked_methods, require, wrong

_replacing = threading.RLock()
_OF_PROGRAM = "_loaded", "_inner", "_executor", "origin", "cached"
"""Attributes that another program has its own values of."""


@checked_methods
class Executable(Compiled):
    """A program that was compiled and loaded for devices of a client.

    Attributes:
        client: the client that compiled it.
        devices: devices that one execution uses, replicas outermost; of a portable executable the
            one that calls use by default.
        num_devices: devices of all processes that one execution uses.
        portable: each call may choose its device.
        outputs: shapes (per device) and types of the results.
        cached: it was not compiled now, but loaded from the compile cache.
        renewal: what may have it run another program later, and is kept for that.
    """

    def __init__(
        self,
        client: ClientCore,
        handle: Handle,
        signature: Signature,
        name: str,
        portable: bool,
    ) -> None:
        require(client, ClientCore, "Executable: client")
        require(signature, Signature, "Executable: signature")
        require_kind(handle, ("LoadedExecutable",), "Executable: handle")
        api = client.api
        super().__init__(api, signature, name, portable=portable)
        self.client = client
        self.cached = False
        self.renewal: object = None
        self._plans: list[Any] = []
        self._replaced: list[Executable] = []
        self._loaded = handle
        # The program's description is owned apart from the loaded one, but ends with it.
        self._inner = Handle(api, "Executable", handle)
        with handle.held() as pointer, self._inner:
            self._inner.make("LoadedExecutable_GetExecutable", loaded_executable=pointer)
            with self._inner.held():
                self._describe()

    def _describe(self) -> None:
        client, inner = self.client, self._inner.pointer
        # With one partition the compiler ignores shardings.
        sharded = description.partitions(client.api, inner) > 1
        self.devices = description.devices(client, self._loaded.pointer) or client.devices[:1]
        self.num_devices = description.device_count(client, inner, self.devices)
        self.outputs = description.result_types(
            client.api, inner, self.name, self.signature, sharded=sharded
        )
        self._arguments = Arguments(self.name, self.signature, client, sharded=sharded)
        target = plans.PlannedExecutable(
            name=self.name,
            client=client,
            loaded=self._loaded,
            options=STRUCTS["PJRT_ExecuteOptions"].new(),
            signature=self.signature,
            outputs=self.outputs,
            device=None if self.portable or len(self.devices) != 1 else self.devices[0],
        )
        self._executor = Executor(
            target,
            self._arguments,
            Results(client, self.name, self.signature.results, self.outputs),
            devices=self.num_devices,
            portable=self.portable,
        )

    # -- running ---------------------------------------------------------------------------------

    def __call__(self, *arrays: Any) -> tuple[Buffer, ...]:
        """Run on arrays of any kind that `Client.put` takes, or buffers.

        Returns before the results are computed; reading a result waits.

        Raises:
            SignatureMismatch: the arguments differ from the signature.
            BufferUnavailable: an argument was donated or deleted before.
        """
        found = self.call_directly(arrays)
        if found is not None:
            return found
        client, device = self.client, self.devices[0]
        buffers: list[Buffer] = []
        try:
            for array, order in zip(arrays, self._arguments.layouts, strict=True):
                # A buffer in another layout is the caller's mistake, which `execute` names.
                layout = None if isinstance(array, Buffer) else order
                buffers.append(put(client, array, device, None, layout, None))
        except (DataError, UnsupportedDtype) as error:
            where = f"argument {len(buffers)} of executable {self.name!r}"
            raise type(error)(f"{where}: {error}") from error
        return self.execute(buffers)

    def call_directly(self, arrays: Sequence[Any]) -> tuple[Buffer, ...] | None:
        """The results of a call that the dispatcher starts on NumPy arrays and buffers as they lie.

        None where something has to be put, converted, moved or refused before.

        Raises:
            SignatureMismatch: too few or too many arguments.
            PjrtError: the plugin failed.
        """
        self._arguments.check_count(arrays)
        return self._executor.call(arrays)

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
        (outputs,), events = self._executor.execute([buffers], (where,), donate)
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
            PjrtBridgeError: as `execute`; a failure of the execution itself comes from the event.
        """
        where = self._one_device(device)
        (outputs,), (event,) = self._executor.execute([buffers], (where,), donate, watch=True)
        return outputs, event

    def start(
        self, buffers: Sequence[Buffer], *, donate: Collection[int] | None = None
    ) -> tuple[tuple[Buffer, ...], End]:
        """`submit` on the executable's device, started by the dispatcher where that is offered.

        Raises:
            PjrtBridgeError: as `execute`; a failure of the execution itself comes from the end.
        """
        return self._executor.start(buffers, self._one_device(None), donate)

    def plan(
        self,
        parameters: Sequence[plans.BoundParameter],
        results: Sequence[ValueSpec],
        framework: plans.Framework | plans.Capsules,
        *,
        targets: Sequence[int | None] | None = None,
        on_device: bool = False,
    ) -> Any:
        """What launches this executable on tensors of a framework, see `runtime.dispatch`.

        None where there is no faster way than `submit`.

        Args:
            parameters: of the program.
            results: of the program.
            framework: where the tensors come from.
            targets: for each result the position of the value that `Plan.call` writes it into,
                whose elements lie as the result's do; None: it is handed on.
            on_device: the tensors are there.
        """
        with _replacing:
            found = plans.plan(
                self._executor.target,
                parameters,
                results,
                framework,
                targets=targets,
                on_device=on_device,
            )
            if found is not None:
                self._plans.append(found)
        return found

    def take_over(self, other: Executable) -> None:
        """Run another program in place of this one from the next call on, also through its plans.

        Args:
            other: compiled for the same devices, with the same parameters and results. It has this
                object's program then, which calls that are under way go on with, and is closed with
                this object.

        Raises:
            SignatureMismatch: it has others.
        """
        for what in ("client", "signature", "devices", "num_devices", "outputs", "portable"):
            mine, found = getattr(self, what), getattr(other, what)
            if mine != found:
                raise SignatureMismatch(
                    f"executable {self.name!r} cannot become {other.name!r}: found {what} {found}, "
                    f"expected {mine}"
                )
        with _replacing:
            for name in _OF_PROGRAM:
                mine, found = getattr(self, name), getattr(other, name)
                setattr(self, name, found)
                setattr(other, name, mine)
            # A call in another thread may be about to start it.
            self._replaced.append(other)
            for plan in self._plans:
                plans.replace(plan, self._loaded)
            if other._loaded.released:
                self.close()

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
        """Run on all devices of the executable: each process on its own, all in the same order.

        Args:
            buffers: for each of `devices`, the arguments that live there, with the shape of one
                shard.
            donate: as in `execute`.

        Returns:
            For each device the results there.

        Raises:
            PjrtBridgeError: as `execute`.
        """
        self._check_lists(buffers)
        outputs, events = self._executor.execute(buffers, self.devices, donate)
        _wait(events)
        return outputs

    def submit_sharded(
        self, buffers: Sequence[Sequence[Buffer]], *, donate: Collection[int] | None = None
    ) -> tuple[tuple[tuple[Buffer, ...], ...], Sequence[Event]]:
        """`execute_sharded`, and for each device the event of the execution's end there.

        Raises:
            PjrtBridgeError: as `execute_sharded`; failures of the execution come from the events.
        """
        self._check_lists(buffers)
        return self._executor.execute(buffers, self.devices, donate, watch=True)

    def _check_lists(self, buffers: Sequence[Sequence[Buffer]]) -> None:
        if not isinstance(buffers, (list, tuple)):
            expected = "a list of a list of Buffers for each device"
            raise SignatureMismatch(wrong(f"executable {self.name!r}", buffers, expected))
        if len(buffers) != len(self.devices):
            raise SignatureMismatch(
                f"executable {self.name!r}: found arguments for {len(buffers)} devices, "
                f"expected {len(self.devices)}"
            )

    # -- description -----------------------------------------------------------------------------

    @property
    def platform(self) -> str:
        """Name and version of the client's platform."""
        return self.client.platform

    def needs(self) -> dict[str, str | None]:
        """The same build of the plugin; the same processor, where the plugin computes on it."""
        library = self.client.plugin.library
        return {
            "library": None if library is None else library_hash(library),
            "processor": processor() if self.client.shares_host_memory else None,
        }

    @property
    def memory_limit(self) -> int | None:
        """Bytes that a program can have on each device; None where the plugin does not tell."""
        return memory_limit(self.devices)

    @contextmanager
    def held(self) -> Iterator[int]:
        """The plugin's description of the program, kept during a `with` block."""
        try:
            # It keeps the loaded program, too.
            self._inner.pin()
        except Closed:
            raise closed(self.name) from None
        try:
            yield self._inner.pointer
        finally:
            self._inner.unpin()

    def close(self) -> None:
        """Unload the program; executions that are under way go on."""
        self._loaded.release()
        for executable in self._replaced:
            executable.close()

    def __enter__(self) -> Executable:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self, release_soon: Finalizer = release_soon) -> None:
        release_soon(getattr(self, "_loaded", None))

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
