"""Runtime objects over one plugin.

Plugin, Client, Device, Memory, Buffer, Executable, Event; and for devices that are not there
Topology, DeviceDescription, CompiledExecutable.
"""

from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.buffer_core import BufferState
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.compile_options import CompileOptions
from pjrt_bridge.runtime.core.description import MemoryStats
from pjrt_bridge.runtime.core.device import Device, DeviceDescription, Memory
from pjrt_bridge.runtime.core.event import Event
from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.runtime.core.plugin_core import PluginCore
from pjrt_bridge.runtime.keyvalue import KeyValueStore, Processes
from pjrt_bridge.runtime.objects.client import Client, open_clients
from pjrt_bridge.runtime.objects.compiled import Compiled
from pjrt_bridge.runtime.objects.executable import Executable
from pjrt_bridge.runtime.objects.plugin import Plugin
from pjrt_bridge.runtime.objects.sharded import ShardedBuffer, ShardedExecutable
from pjrt_bridge.runtime.objects.topology import CompiledExecutable, Topology
from pjrt_bridge.runtime.ownership.exit import live as live_handles

__all__ = [
    "Buffer",
    "BufferState",
    "Client",
    "ClientCore",
    "CompileOptions",
    "Compiled",
    "CompiledExecutable",
    "Device",
    "DeviceDescription",
    "Event",
    "Executable",
    "KeyValueStore",
    "Layout",
    "Memory",
    "MemoryStats",
    "Plugin",
    "PluginCore",
    "Processes",
    "ShardedBuffer",
    "ShardedExecutable",
    "Topology",
    "live_handles",
    "open_clients",
]
