"""Compilation in phases: what the CPU plugin lacks, and a plugin that has it."""

import ctypes
from typing import Any

import pytest

from pjrt_bridge.abi.implementation_objects import Keep, Objects, Status
from pjrt_bridge.abi.values import read_int64s, read_pointers
from pjrt_bridge.errors import ErrorCode, ExtensionUnavailable, InvalidArgument
from pjrt_bridge.extensions import PhaseCompile
from pjrt_bridge.runtime import Client, CompileOptions, Plugin
from tests.extensions.offering import offering


def test_the_cpu_plugin_gives_no_compiler(client: Client) -> None:
    phases = client.extension(PhaseCompile)
    assert [name for name in phases.TABLE.functions if phases.offers(name)] == [
        "run_phases",
        "get_phase_names",
        "c_buffers_destroy",
    ]
    with pytest.raises(ExtensionUnavailable, match=r"PhaseCompile_get_compiler.* slot empty"):
        phases.phases()
    with pytest.raises(ExtensionUnavailable, match="PhaseCompile_get_compiler"):
        phases.run([b"program"], ["stablehlo_to_hlo"])


class Phases:
    """Phases that append their names to the programs."""

    NAMES = ("first", "second")

    def __init__(self) -> None:
        self.compilers = Objects()
        self.lent: dict[int, Keep] = {}
        self.options = b""

    def functions(self) -> dict[str, Any]:
        return {
            "get_compiler": self.get_compiler,
            "destroy_compiler": self.destroy_compiler,
            "run_phases": self.run_phases,
            "get_phase_names": self.get_phase_names,
            "c_buffers_destroy": self.c_buffers_destroy,
        }

    def get_compiler(self, args: Any) -> None:
        args.phase_compiler = self.compilers.add("compiler")

    def destroy_compiler(self, args: Any) -> None:
        self.compilers.remove(args.phase_compiler, str)

    def lend(self, texts: list[bytes]) -> tuple[int, int, int]:
        keep = Keep()
        found = [keep.text(text) for text in texts]
        array = keep.pointers([at for at, _ in found])
        self.lent[array] = keep
        return array, keep.int64s([size for _, size in found]), len(texts)

    def get_phase_names(self, args: Any) -> None:
        self.compilers.get(args.phase_compiler, str)
        made = self.lend([name.encode() for name in self.NAMES])
        args.phase_names, args.phase_names_sizes, args.num_phase_names = made

    def run_phases(self, args: Any) -> None:
        self.compilers.get(args.phase_compiler, str)
        self.options = ctypes.string_at(args.compile_options, args.compile_options_size)
        programs = texts(args.input_programs, args.input_programs_sizes, args.num_input_programs)
        for phase in texts(args.phases_to_run, args.phases_to_run_sizes, args.num_phases_to_run):
            if phase.decode() not in self.NAMES:
                raise Status(ErrorCode.INVALID_ARGUMENT, f"no phase {phase.decode()}")
            programs = [program + b"+" + phase for program in programs]
        made = self.lend(programs)
        args.output_programs, args.output_programs_sizes, args.num_output_programs = made

    def c_buffers_destroy(self, args: Any) -> None:
        del self.lent[args.char_buffers]


def texts(address: int, sizes: int, count: int) -> list[bytes]:
    found = zip(read_pointers(address, count), read_int64s(sizes, count), strict=True)
    return [ctypes.string_at(at, size) for at, size in found]


def test_a_plugin_with_phases(plugin: Plugin) -> None:
    theirs = Phases()
    with offering(plugin, PhaseCompile.TABLE, theirs.functions()) as client:
        phases = client.extension(PhaseCompile)
        assert phases.phases() == ("first", "second")
        made = phases.run([b"one", b"tw\0o"], phases.phases())
        assert made == (b"one+first+second", b"tw\0o+first+second")
        assert theirs.options == CompileOptions().serialize()
        assert phases.run([], ["first"]) == ()
        with pytest.raises(InvalidArgument, match="no phase third"):
            phases.run([b"one"], ["third"])
        # Compilers and strings were given back, also after the failure.
        assert theirs.compilers.count() == 0
        assert theirs.lent == {}
