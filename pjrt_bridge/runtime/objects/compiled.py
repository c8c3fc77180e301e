"""Compiled: what a loaded program and one that was compiled for a topology have in common."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, suppress

from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import NamedValue, free
from pjrt_bridge.errors import PjrtError, PluginIncompatible
from pjrt_bridge.runtime.compile.serialized import Header, pack
from pjrt_bridge.runtime.core import description
from pjrt_bridge.runtime.core.description import MemoryStats
from pjrt_bridge.runtime.objects.collectives import Collective, collectives_in
from pjrt_bridge.stablehlo.types import Signature


class Compiled(ABC):
    """A compiled program: what its compiler says of it, and its bytes.

    Attributes:
        api: the table of the plugin that compiled it.
        name: of the program.
        signature: parameters and results of the program.
        portable: it may run on any one device of its kind.
        origin: what it was loaded from; None where it was compiled.
    """

    def __init__(self, api: Api, signature: Signature, name: str, *, portable: bool) -> None:
        self.api = api
        self.name = name
        self.signature = signature
        self.portable = portable
        self.origin: bytes | None = None

    @property
    @abstractmethod
    def platform(self) -> str:
        """Name and version of the platform that it was compiled for."""

    @property
    def target(self) -> str | None:
        """The topology that it was compiled for; None where a client compiled it for its own."""
        return None

    def needs(self) -> dict[str, str | None]:
        """What the bytes of the program need where they are loaded: fields of `Header`."""
        return {}

    @property
    def memory_limit(self) -> int | None:
        """Bytes that a program can have on each device of the target; None if that is unknown."""
        return None

    @abstractmethod
    def held(self) -> AbstractContextManager[int]:
        """The plugin's description of the program, kept during a `with` block.

        Raises:
            Closed: the program was closed.
        """

    def serialize(self) -> bytes:
        """The compiled program, for `Client.deserialize` of the same plugin in any process.

        Raises:
            Unimplemented: the plugin cannot serialize.
            Closed: the program was closed.
        """
        with self.held() as pointer:
            # Of what was loaded, XLA's CPU plugin writes a program without its code.
            if self.origin is not None:
                return self.origin
            found = self.api.call("Executable_Serialize", executable=pointer)
            if not found.serialized_bytes:
                raise PluginIncompatible(
                    f"plugin {self.api.plugin!r}: Executable_Serialize gave NULL for {self.name!r}"
                )
            blob = ctypes.string_at(found.serialized_bytes, found.serialized_bytes_size)
            if found.serialized_executable_deleter:
                free(found.serialized_executable_deleter, found.serialized_executable)
        header = Header(
            name=self.name,
            platform=self.platform,
            portable=self.portable,
            signature=self.signature.to_json(),
            topology=self.target,
            **self.needs(),
        )
        return pack(header, blob)

    def optimized(self) -> tuple[bytes, str]:
        """What the compiler made of the program, and its format: `hlo`, `hlo_with_config`, ...

        Raises:
            Unimplemented: the plugin does not give it.
            Closed: the program was closed.
        """
        found = STRUCTS["PJRT_Program"].new()
        with self.held() as pointer:
            self.api.call("Executable_OptimizedProgram", executable=pointer, program=found)
            # The first call tells how much memory the second one fills.
            memory = ctypes.create_string_buffer(found.code_size)
            found.code = ctypes.addressof(memory)
            self.api.call("Executable_OptimizedProgram", executable=pointer, program=found)
            format = ctypes.string_at(found.format, found.format_size).decode()
        return memory.raw, format

    def collectives(self) -> tuple[Collective, ...]:
        """The collective operations of the program, also those that a partitioner added.

        Empty where the plugin does not tell.

        Raises:
            Closed: the program was closed.
        """
        with suppress(PjrtError, ValueError):
            return collectives_in(*self.optimized())
        return ()

    def cost(self) -> dict[str, NamedValue]:
        """The compiler's estimate of one execution: flops, bytes accessed, ... by its own names.

        Raises:
            Unimplemented: the plugin does not estimate.
            Closed: the program was closed.
        """
        with self.held() as pointer:
            return description.cost(self.api, pointer)

    def memory_stats(self) -> MemoryStats:
        """Device memory that one execution needs on each device.

        Raises:
            Unimplemented: the plugin does not tell.
            Closed: the program was closed.
        """
        with self.held() as pointer:
            return description.memory_stats(self.api, pointer)

    def parameter_memory_kinds(self) -> tuple[str, ...]:
        """Kind of the memory space that each argument has to be in (PJRT API 0.102).

        Raises:
            Unimplemented: the plugin does not tell.
            Closed: the program was closed.
        """
        with self.held() as pointer:
            return description.parameter_memory_kinds(self.api, pointer)

    def fingerprint(self) -> str:
        """The plugin's fingerprint of the compiled program; in hexadecimal where it is no text.

        Raises:
            Unimplemented: the plugin makes none.
            Closed: the program was closed.
        """
        with self.held() as pointer:
            return description.fingerprint(self.api, pointer)
