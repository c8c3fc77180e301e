"""PhaseCompile: compile in steps, and keep what is between them.

A program between phases is a serialized `xla.PjRtPartialProgramProto`, which the bridge hands on as
bytes. XLA's CPU plugin 0.81 advertises the extension without a way to get a compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from pjrt_bridge.abi.extension_structs import ExtensionTable, by_name
from pjrt_bridge.abi.values import int64s, pointers, read_int64s, read_pointers
from pjrt_bridge.extensions.base import Accessor
from pjrt_bridge.runtime import CompileOptions, Topology
from pjrt_bridge.wrong_arguments import checked_methods


@checked_methods
class PhaseCompile(Accessor):
    """Compilation in phases (pjrt_c_api_phase_compile_extension.h 1, experimental)."""

    TABLE: ClassVar[ExtensionTable] = by_name("PhaseCompile")

    def phases(self) -> tuple[str, ...]:
        """Names of the phases, in the plugin's order.

        Raises:
            ExtensionUnavailable: the plugin gives no compiler, or does not name its phases.
        """
        with self._compiler() as compiler:
            found = self.call("get_phase_names", phase_compiler=compiler)
            names = self._take(found.phase_names, found.phase_names_sizes, found.num_phase_names)
        return tuple(name.decode(errors="replace") for name in names)

    def run(
        self,
        programs: Sequence[bytes],
        phases: Sequence[str],
        *,
        options: CompileOptions | None = None,
        topology: Topology | None = None,
    ) -> tuple[bytes, ...]:
        """Lead programs through phases.

        Args:
            programs: serialized partial programs.
            phases: names of the phases to run, in order.
            options: as for `Client.compile`.
            topology: what to compile for; None: the one that was asked, or that of the client.

        Returns:
            What the last phase made.

        Raises:
            ExtensionUnavailable: the plugin gives no compiler, or runs no phases.
            DataError: a topology of another plugin.
            PjrtError: an unknown phase, or one that failed.
        """
        described = self.topology(topology)
        serialized = (options or CompileOptions()).serialize()
        given, given_sizes, _given = _texts(programs)
        names, name_sizes, _names = _texts([phase.encode() for phase in phases])
        with self._compiler() as compiler:
            made = self.call(
                "run_phases",
                phase_compiler=compiler,
                input_programs=given,
                input_programs_sizes=given_sizes,
                num_input_programs=len(programs),
                phases_to_run=names,
                phases_to_run_sizes=name_sizes,
                num_phases_to_run=len(phases),
                compile_options=serialized,
                compile_options_size=len(serialized),
                topology=described.pointer,
            )
            outputs = made.output_programs, made.output_programs_sizes, made.num_output_programs
            return self._take(*outputs)

    @contextmanager
    def _compiler(self) -> Iterator[int]:
        pointer = self.call("get_compiler").phase_compiler
        try:
            yield pointer
        finally:
            self.call("destroy_compiler", phase_compiler=pointer)

    def _take(self, texts: int | None, sizes: int | None, count: int) -> tuple[bytes, ...]:
        """Copy strings of the plugin, and give them back."""
        try:
            found = zip(read_pointers(texts, count), read_int64s(sizes, count), strict=True)
            return tuple(ctypes.string_at(at, size) for at, size in found)
        finally:
            self.call(
                "c_buffers_destroy",
                char_buffers=texts,
                char_buffer_sizes=sizes,
                num_char_buffers=count,
            )


def _texts(texts: Sequence[bytes]) -> tuple[int, int, list[Any]]:
    """Addresses of an array of strings and of an array of their sizes, and what keeps them."""
    memory = [ctypes.create_string_buffer(text) for text in texts]
    starts = pointers([ctypes.addressof(at) for at in memory])
    sizes = int64s([len(text) for text in texts])
    return ctypes.addressof(starts), ctypes.addressof(sizes), [memory, starts, sizes]
