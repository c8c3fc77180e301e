"""What the plugin says of itself."""

from __future__ import annotations

PLATFORM = "reference"
"""Name of the platform."""

API_VERSION = (0, 81)
"""Version of the PJRT C API whose functions the table has, all of them."""

PLATFORM_VERSION = "pjrt-bridge-reference 0.1.0, StableHLO's reference interpreter"
"""For people, and for caches of compiled programs."""

OPTIONS: dict[str, type] = {
    "device_count": int,
    "host_memory": bool,
    "latency_ms": int,
    "memory_limit": int,
    "node_id": int,
    "num_nodes": int,
    "process_timeout_ms": int,
}
"""Create options with their types: devices of this process; whether device memory is host memory,
which callers may lend and view; milliseconds by which each execution is delayed; bytes of device
memory; number of this process, of how many processes, and milliseconds for which one waits for
another."""
