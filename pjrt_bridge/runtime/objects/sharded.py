"""Arrays that are divided over the devices of a mesh, and programs that compute with them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import DataError, OptionError, PluginIncompatible, SignatureMismatch
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.compile_options import CompileOptions
from pjrt_bridge.runtime.core.device import Device
from pjrt_bridge.runtime.core.event import Event
from pjrt_bridge.runtime.objects.client import Client
from pjrt_bridge.runtime.transfers.host import HostArray, describe
from pjrt_bridge.stablehlo.partitioning.propagation import ShardedProgram
from pjrt_bridge.stablehlo.sharding.mesh import Mesh
from pjrt_bridge.stablehlo.sharding.sharding import Sharding
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import checked_methods


def devices_of(client: Client, mesh: Mesh) -> tuple[Device, ...]:
    """The devices of a mesh: the first ones of a client, in its order.

    Raises:
        OptionError: the client has fewer.
    """
    if mesh.size > len(client.devices):
        raise OptionError(
            f"{mesh} needs {mesh.size} devices, {client!r} has {len(client.devices)}; where a "
            "plugin has an option for their number, make a client with more"
        )
    return client.devices[: mesh.size]


@checked_methods
class ShardedBuffer:
    """An immutable array with a buffer on each device of a mesh.

    Args:
        type: shape and element type of the whole array.
        sharding: how it is divided.
        shards: for each position of the mesh the buffer there.

    Attributes:
        type: see above.
        sharding: see above.
        shards: see above.

    Raises:
        DataError: another number of buffers, or another shape of one.
    """

    __slots__ = ("__weakref__", "sharding", "shards", "type")

    def __init__(self, type: TensorType, sharding: Sharding, shards: Sequence[Buffer]) -> None:
        expected = TensorType(sharding.shard_shape(type.shape), type.dtype)
        if len(shards) != sharding.mesh.size:
            raise DataError(
                f"array {type}: found {len(shards)} shards, expected {sharding.mesh.size} of "
                f"{sharding.mesh}"
            )
        for position, buffer in enumerate(shards):
            if buffer.type != expected:
                raise DataError(
                    f"array {type}, {sharding}: shard {position}: found {buffer.type}, expected "
                    f"{expected}"
                )
        self.type = type
        self.sharding = sharding
        self.shards = tuple(shards)

    @classmethod
    def of_parts(
        cls, type: TensorType, sharding: Sharding, shards: tuple[Buffer, ...]
    ) -> ShardedBuffer:
        """An array of parts that are known to be those of the sharding."""
        made = cls.__new__(cls)
        made.type = type
        made.sharding = sharding
        made.shards = shards
        return made

    @staticmethod
    def put(client: Client, data: Any, sharding: Sharding) -> ShardedBuffer:
        """Divide an array of the host over the devices of a mesh.

        Args:
            client: of the devices.
            data: what `Client.put` takes of the host.
            sharding: how to divide it.

        Raises:
            ProgramError: a dimension that does not divide, or a sharding for another rank.
            OptionError: the client has too few devices.
            DataError, UnsupportedDtype, PjrtError: see `Client.put`.
        """
        return ShardedBuffer.put_host(client, describe(data), sharding)

    @staticmethod
    def put_host(client: Client, host: HostArray, sharding: Sharding) -> ShardedBuffer:
        """`put` for memory that is described already."""
        places = devices_of(client, sharding.mesh)
        shards = [
            client.put_host(host.part(sharding.indices(host.shape, position)), device)
            for position, device in enumerate(places)
        ]
        return ShardedBuffer(TensorType(host.shape, host.dtype), sharding, shards)

    @property
    def client(self) -> Client:
        """The client of the devices."""
        found = self.shards[0].client
        assert isinstance(found, Client)
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per dimension of the whole array."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def nbytes(self) -> int:
        """Bytes on all devices together."""
        return sum(shard.nbytes for shard in self.shards)

    def block_until_ready(self) -> ShardedBuffer:
        """Wait for the values on all devices.

        Raises:
            PjrtError: their computation failed.
        """
        for shard in self.shards:
            shard.block_until_ready()
        return self

    def mark_ready(self) -> None:
        """Note that the values are there."""
        for shard in self.shards:
            shard.mark_ready()

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """The whole array in host memory; of parts that several devices have one is read.

        Raises:
            PjrtError: the computation or a transfer failed.
        """
        if self.sharding.is_replicated:
            return self.shards[0].to_numpy()
        whole = np.empty(self.shape, self.dtype.numpy)
        for position, holder in enumerate(self.sharding.holders):
            if holder == position:
                part = self.sharding.indices(self.shape, position)
                whole[part] = self.shards[position].to_numpy()
        return whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError(f"{self!r} is on several devices and cannot be viewed; use copy=None")
        whole = self.to_numpy()
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def delete(self) -> None:
        """Free the memory on all devices."""
        for shard in self.shards:
            shard.delete()

    def __repr__(self) -> str:
        return f"<ShardedBuffer {self.type}, {self.sharding}>"


class Ends:
    """The ends of an execution on several devices, as one event."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    def wait(self) -> None:
        """Block until the execution has ended on all devices.

        Raises:
            PjrtError: it failed on one.
        """
        for event in self._events:
            event.wait()

    def close(self) -> None:
        """Forget the events; the execution goes on."""
        for event in self._events:
            event.close()


@checked_methods
class ShardedExecutable:
    """A program that is compiled for the devices of a mesh.

    Args:
        client: of the devices.
        program: what to compile.
        options: of which the compiler flags count.

    Attributes:
        program: see above.
        executable: what runs; its arguments and results are shards.

    Raises:
        OptionError: the client has too few devices.
        PluginIncompatible: the plugin divides a result otherwise.
        PjrtBridgeError: see `Client.compile`.
    """

    def __init__(
        self, client: Client, program: ShardedProgram, options: CompileOptions | None = None
    ) -> None:
        self.program = program
        devices = devices_of(client, program.mesh)
        self.executable = client.compile(
            program.program,
            options=CompileOptions(
                num_partitions=len(devices),
                use_shardy_partitioner=True,
                device_assignment=[[device.id for device in devices]],
                env={} if options is None else options.env,
            ),
        )
        self._given: list[tuple[TensorType, Sharding]] = []
        # The parts of results without elements, which partitioners divide or not.
        self._empty: dict[int, TensorType] = {}
        for result, sharding, part in zip(
            self.executable.signature.results,
            program.results,
            self.executable.outputs,
            strict=True,
        ):
            expected = TensorType(sharding.shard_shape(result.type.shape), result.type.dtype)
            if part != expected and not (part.size or expected.size):
                self._empty[len(self._given)] = expected
            elif part != expected:
                raise PluginIncompatible(
                    f"executable {self.executable.name!r}: plugin {client.plugin.name!r} gives "
                    f"parts {part} of a result {result.type}, {sharding}; expected {expected}"
                )
            self._given.append((result.type, sharding))

    def execute(
        self, arguments: Sequence[ShardedBuffer], *, donate: Collection[int] | None = None
    ) -> tuple[ShardedBuffer, ...]:
        """Run on all devices; returns before the results are computed.

        Args:
            arguments: divided as `program.parameters` says.
            donate: see `Executable.execute`.

        Raises:
            SignatureMismatch: number, type or sharding of an argument.
            PjrtBridgeError: see `Executable.execute`.
        """
        rows = self._rows(arguments)
        return self._results(self.executable.execute_sharded(rows, donate=donate))

    def submit(
        self, arguments: Sequence[ShardedBuffer], *, donate: Collection[int] | None = None
    ) -> tuple[tuple[ShardedBuffer, ...], Ends]:
        """`execute`, and what waits for the execution's end on all devices.

        Raises:
            PjrtBridgeError: as `execute`; a failure of the execution itself comes from the wait.
        """
        made, events = self.executable.submit_sharded(self._rows(arguments), donate=donate)
        return self._results(made), Ends(events)

    def _rows(self, arguments: Sequence[ShardedBuffer]) -> list[list[Buffer]]:
        """For each device the arguments there."""
        expected = self.program.parameters
        if len(arguments) != len(expected):
            raise SignatureMismatch(
                f"executable {self.executable.name!r}: found {len(arguments)} arguments, expected "
                f"{len(expected)}"
            )
        for index, (argument, sharding) in enumerate(zip(arguments, expected, strict=True)):
            if not isinstance(argument, ShardedBuffer) or (
                argument.sharding is not sharding and argument.sharding != sharding
            ):
                raise SignatureMismatch(
                    f"argument {index} of executable {self.executable.name!r}: found {argument!r}, "
                    f"expected an array with the sharding {sharding}"
                )
        return [
            [argument.shards[position] for argument in arguments]
            for position in range(self.program.mesh.size)
        ]

    def _results(self, made: Sequence[Sequence[Buffer]]) -> tuple[ShardedBuffer, ...]:
        columns = list(zip(*made, strict=True))
        for at, type in self._empty.items():
            data = np.empty(type.shape, type.dtype.numpy)
            columns[at] = tuple(part.client.put(data, part.device) for part in columns[at])
        return tuple(
            ShardedBuffer.of_parts(type, sharding, parts)
            for (type, sharding), parts in zip(self._given, columns, strict=True)
        )
