"""Optional features of plugins: one accessor class for each extension of the PJRT C API."""

from pjrt_bridge.extensions import tables
from pjrt_bridge.extensions.base import Accessor
from pjrt_bridge.extensions.ffi import FFI
from pjrt_bridge.extensions.layouts import Layouts
from pjrt_bridge.extensions.memory_descriptions import MemoryDescriptions
from pjrt_bridge.extensions.phase_compile import PhaseCompile
from pjrt_bridge.extensions.profiler import Profiler

BUILT_IN: tuple[type[Accessor], ...] = (
    FFI,
    Layouts,
    MemoryDescriptions,
    PhaseCompile,
    Profiler,
    *tables.ALL,
)
"""The accessors that the bridge itself brings: for all extension types but `Unknown`."""

__all__ = [
    "BUILT_IN",
    "FFI",
    "Accessor",
    "Layouts",
    "MemoryDescriptions",
    "PhaseCompile",
    "Profiler",
]
