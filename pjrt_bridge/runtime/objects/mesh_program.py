"""Programs over a mesh that are compiled for the shardings of the arguments that come."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from pjrt_bridge.errors import DataError
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.compile_options import CompileOptions
from pjrt_bridge.runtime.objects.client import Client
from pjrt_bridge.runtime.objects.sharded import ShardedBuffer, ShardedExecutable, devices_of
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.partitioning.propagation import shard
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.sharding.mesh import Mesh
from pjrt_bridge.stablehlo.sharding.sharding import Sharding
from pjrt_bridge.stablehlo.types import TensorType

AnyBuffer = Buffer | ShardedBuffer
"""An array on one device, or divided over those of a mesh."""


def common_mesh(arrays: Sequence[Any]) -> Mesh | None:
    """The mesh of those arrays that are divided over one; None where none is.

    Raises:
        DataError: they are divided over several.
    """
    found: ShardedBuffer | None = None
    for array in arrays:
        if isinstance(array, ShardedBuffer):
            if found is not None and array.sharding.mesh != found.sharding.mesh:
                raise DataError(
                    f"arguments of one program are divided over several meshes: {found.type} over "
                    f"{found.sharding.mesh}, {array.type} over {array.sharding.mesh}; expected one "
                    "(mark_sharding moves a tensor to another mesh)"
                )
            found = array
    return None if found is None else found.sharding.mesh


class MeshProgram:
    """A program, with an executable for each way in which its arguments are divided.

    Args:
        client: of the devices.
        program: may have constraints over the mesh.
        options: of which the compiler flags count.
    """

    def __init__(
        self, client: Client, program: Program, options: CompileOptions | None = None
    ) -> None:
        self.client = client
        self.program = program
        self._options = options
        self._variants: dict[Any, ShardedExecutable] = {}
        self._lock = threading.Lock()

    @property
    def executables(self) -> tuple[ShardedExecutable, ...]:
        """The compiled programs, oldest first."""
        return tuple(self._variants.values())

    def executable(
        self,
        mesh: Mesh,
        parameters: Sequence[Sharding | None],
        results: Sequence[Sharding | None] | None = None,
    ) -> ShardedExecutable:
        """The executable for shardings; see `shard`. None for all results leaves all open.

        Raises:
            ProgramError: see `shard`.
            PjrtBridgeError: see `Client.compile`.
        """
        if results is None:
            results = (None,) * len(self.program.signature.results)
        key = (mesh, tuple(parameters), tuple(results))
        with self._lock:
            found = self._variants.get(key)
            if found is None:
                divided = shard(self.program, mesh, parameters, results)
                found = ShardedExecutable(self.client, divided, self._options)
                self._variants[key] = found
        return found

    def run(
        self, arrays: Sequence[AnyBuffer], results: Sequence[Sharding | None] | None = None
    ) -> tuple[ShardedBuffer, ...]:
        """Run on arrays, of which one is divided at least; those that are not are put as it suits.

        Raises:
            DataError: arrays over several meshes, or none.
        """
        mesh = common_mesh(arrays)
        if mesh is None:
            raise DataError(f"program {self.program.name!r}: expected an array over a mesh")
        known = [item.sharding if isinstance(item, ShardedBuffer) else None for item in arrays]
        found = self.executable(mesh, known, results)
        return found.execute(
            [
                placed(array, sharding)
                for array, sharding in zip(arrays, found.program.parameters, strict=True)
            ]
        )


_identities: WeakKeyDictionary[Client, dict[TensorType, MeshProgram]] = WeakKeyDictionary()


def placed(array: AnyBuffer, sharding: Sharding) -> ShardedBuffer:
    """The same elements, divided so; an array that is divided so already is given back.

    Raises:
        DataError: an array over another mesh.
        ProgramError: a dimension that does not divide, or another rank.
    """
    if isinstance(array, ShardedBuffer):
        if array.sharding == sharding:
            return array
        if array.sharding.mesh != sharding.mesh:
            raise DataError(
                f"array {array.type}: found one over {array.sharding.mesh}, expected "
                f"{sharding.mesh}"
            )
        programs = _identities.setdefault(array.client, {})
        program = programs.get(array.type)
        if program is None:
            builder = Builder([array.type], name="reshard")
            identity = builder.finish(builder.parameters)
            program = programs.setdefault(array.type, MeshProgram(array.client, identity))
        (found,) = program.run([array], [sharding])
        return found
    sharding.shard_shape(array.shape)
    client = array.client
    assert isinstance(client, Client)
    if sharding.is_replicated:
        devices = devices_of(client, sharding.mesh)
        shards = [array if at is array.device else array.copy_to(at) for at in devices]
        return ShardedBuffer(array.type, sharding, shards)
    return ShardedBuffer.put(client, _copied(array), sharding)


def moved(array: AnyBuffer, sharding: Sharding) -> ShardedBuffer:
    """`placed`, also from another mesh of the client: through host memory.

    Raises:
        ProgramError: see `placed`.
    """
    if isinstance(array, ShardedBuffer) and array.sharding.mesh != sharding.mesh:
        return ShardedBuffer.put(array.client, _copied(array), sharding)
    return placed(array, sharding)


def _copied(array: AnyBuffer) -> np.ndarray[Any, Any]:
    return np.asarray(array.to_numpy(), order="C")


def whole(array: ShardedBuffer) -> Buffer:
    """All elements, on the first device of the mesh."""
    if array.sharding.is_replicated:
        return array.shards[0]
    return array.client.put(array.to_numpy(), array.shards[0].device)
