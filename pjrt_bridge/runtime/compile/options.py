"""Options of a compilation and of a client: checked here, because a plugin may abort on a bad one.

`CompileOptions` becomes a serialized `CompileOptionsProto` (xla/pjrt/proto/compile_options.proto);
the few fields that the bridge sets are encoded here, which needs no protobuf package.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pjrt_bridge import wire
from pjrt_bridge.abi.values import NamedValue, encode_named_values, utf8
from pjrt_bridge.errors import OptionError

Override = str | bool | int | float
"""Value of one compiler flag (`OptionOverrideProto`)."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How to compile a program.

    Attributes:
        num_replicas: copies of the program that run on different data.
        num_partitions: devices that share one copy of the program.
        use_spmd_partitioning: partition by sharding annotations; None means when there are several
            partitions.
        use_shardy_partitioner: understand `sdy` shardings instead of `mhlo.sharding`.
        device_assignment: global device ids, one row a replica, one column a partition; None leaves
            the choice to the plugin.
        portable: the executable may run on any one device, chosen in each call (one replica, one
            partition, no assignment).
        env: compiler flags for this compilation alone, such as
            `{"xla_cpu_prefer_vector_width": 512}`.

    Raises:
        OptionError: an impossible value; the plugin would abort the process on some of them.
    """

    num_replicas: int = 1
    num_partitions: int = 1
    use_spmd_partitioning: bool | None = None
    use_shardy_partitioner: bool = False
    device_assignment: Sequence[Sequence[int]] | None = None
    portable: bool = False
    env: Mapping[str, Override] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("num_replicas", "num_partitions"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 1 << 20:
                raise OptionError(
                    f"CompileOptions.{name}: found {value!r}, expected an int from 1 up"
                )
        for name in ("use_spmd_partitioning", "use_shardy_partitioner", "portable"):
            value = getattr(self, name)
            if not (isinstance(value, bool) or (name == "use_spmd_partitioning" and value is None)):
                raise OptionError(f"CompileOptions.{name}: found {value!r}, expected a bool")
        self._check_assignment()
        self._check_env()

    def _check_env(self) -> None:
        if not isinstance(self.env, Mapping):
            raise OptionError(f"CompileOptions.env: found {self.env!r}, expected a mapping")
        for flag, value in self.env.items():
            known = isinstance(flag, str) and isinstance(value, (str, bool, int, float))
            if not known or (isinstance(value, int) and not -(1 << 63) <= value < 1 << 63):
                raise OptionError(
                    f"CompileOptions.env[{flag!r}]: found {value!r}, "
                    "expected str, bool, an int of 64 bits, or float"
                )
            for text in (flag, value):
                if isinstance(text, str):
                    utf8(text, "CompileOptions.env")

    def _check_assignment(self) -> None:
        rows = self.device_assignment
        if self.portable and (rows is not None or self.num_devices != 1):
            raise OptionError(
                "CompileOptions.portable needs one replica, one partition and no device_assignment"
            )
        if rows is None:
            return
        try:
            ids = [[operator.index(device) for device in row] for row in rows]
        except TypeError:
            ids = []
        flat = [device for row in ids for device in row]
        if [len(row) for row in ids] != [self.num_partitions] * self.num_replicas:
            raise OptionError(
                f"CompileOptions.device_assignment: found {rows!r}, expected {self.num_replicas} "
                f"rows (replicas) of {self.num_partitions} device ids (partitions)"
            )
        if any(not 0 <= device < 1 << 31 for device in flat) or len(set(flat)) != len(flat):
            raise OptionError(
                f"CompileOptions.device_assignment: found {rows!r}, "
                "expected different device ids from 0 up"
            )

    @property
    def num_devices(self) -> int:
        """Devices that one execution uses."""
        return self.num_replicas * self.num_partitions

    def serialize(self) -> bytes:
        """The CompileOptionsProto; never empty, because plugins abort on zero replicas."""
        spmd = self.use_spmd_partitioning
        if spmd is None:
            spmd = self.num_partitions > 1
        build = (
            wire.varint(1, -1)
            + wire.varint(4, self.num_replicas)
            + wire.varint(5, self.num_partitions)
        )
        build += wire.varint(6, int(spmd)) if spmd else b""
        build += wire.varint(19, 1) if self.use_shardy_partitioner else b""
        if self.device_assignment is not None:
            build += wire.message(9, self._assignment())
        proto = wire.message(3, build)
        proto += wire.varint(4, 1) if self.portable else b""
        return proto + serialize_flags(self.env)

    def _assignment(self) -> bytes:
        assert self.device_assignment is not None
        proto = wire.varint(1, self.num_replicas) + wire.varint(2, self.num_partitions)
        for partition in range(self.num_partitions):
            ids = b"".join(wire.base128(row[partition]) for row in self.device_assignment)
            proto += wire.message(3, wire.message(1, ids))
        return proto


def serialize_flags(env: Mapping[str, Override]) -> bytes:
    """Compiler flags as a part of a CompileOptionsProto; of two values for one the last counts."""
    return b"".join(
        wire.message(7, wire.text(1, flag) + wire.message(2, _override(value)))
        for flag, value in env.items()
    )


def _override(value: Override) -> bytes:
    if isinstance(value, bool):
        return wire.varint(2, int(value))
    if isinstance(value, int):
        return wire.varint(3, value)
    if isinstance(value, float):
        return wire.double(4, value)
    return wire.text(1, value)


OPTION_TYPES: Mapping[str, type] = {
    "abort_collectives_on_failure": bool,
    "allocator": str,
    "collective_memory_size": int,
    "cpu_device_count": int,
    "enable_mock_nccl": bool,
    "max_inflight_computations": int,
    "memory_fraction": float,
    "ml_framework_name": str,
    "ml_framework_version": str,
    "mock_gpu_topology": str,
    "node_id": int,
    "num_nodes": int,
    "partition_index": int,
    "platform_name": str,
    "preallocate": bool,
    "should_stage_host_to_device_transfers": bool,
    "use_tfrt_gpu_client": bool,
    "visible_devices": list,
}
"""Types of the create options that the public plugins read (their `*_pjrt_client` sources).

A value of another type aborts the process inside the plugin, so it never gets there. A plugin may
declare further options of its own, see `Plugin.load`.
"""

TOPOLOGY_OPTION_TYPES: Mapping[str, type] = {
    "chip_config_name": str,
    "chips_per_host_bounds": list,
    "num_slices": int,
    "target_config": str,
    "topology": str,
    "wrap": list,
}
"""Types of the create options of topologies that the public plugins read; as for clients."""


def check_topology_options(options: Mapping[str, Any], *, plugin: str) -> dict[str, NamedValue]:
    """Create options of a topology, checked against what public plugins are known to read.

    Raises:
        OptionError: a wrong type, or a value that no option can have.
    """
    if not isinstance(options, Mapping):
        raise OptionError(f"topology of plugin {plugin!r}: found {options!r}, expected a mapping")
    checked = {
        name: _of_type(name, value, TOPOLOGY_OPTION_TYPES.get(name), plugin)
        for name, value in options.items()
    }
    encode_named_values(checked)
    return checked


def check_client_options(
    options: Mapping[str, Any], declared: Mapping[str, type] | None, *, plugin: str
) -> dict[str, NamedValue]:
    """Options of a client, checked against what the plugin declares or is known to read.

    Args:
        options: as the user gave them.
        declared: the complete set of options with their types, when the plugin states it.
        plugin: name for messages.

    Raises:
        OptionError: a wrong type, a value that no option can have, a device count that leaves no
            device, or a name that the plugin does not declare.
    """
    if not isinstance(options, Mapping):
        raise OptionError(f"options of plugin {plugin!r}: found {options!r}, expected a mapping")
    checked: dict[str, NamedValue] = {}
    for name, value in options.items():
        if declared is not None and isinstance(name, str) and name not in declared:
            known = ", ".join(declared) or "none"
            raise OptionError(f"plugin {plugin!r} has no option {name!r}; it declares: {known}")
        expected = (declared or OPTION_TYPES).get(name) or OPTION_TYPES.get(name)
        checked[name] = _of_type(name, value, expected, plugin)
    count = checked.get("cpu_device_count", 1)
    if isinstance(count, int) and not 1 <= count <= 4096:
        raise OptionError(
            f"option 'cpu_device_count' of plugin {plugin!r}: found {count}, expected 1 to 4096"
        )
    encode_named_values(checked)
    return checked


def _of_type(name: object, value: Any, expected: type | None, plugin: str) -> Any:
    """A value as the plugin has to get it, if it is of the type that the plugin reads."""
    if not isinstance(name, str):
        raise OptionError(f"plugin {plugin!r} has no option {name!r}; names are texts")
    if expected is float and type(value) is int:
        value = float(value)
    if expected is list and isinstance(value, tuple):
        value = list(value)
    if expected is not None and type(value) is not expected:
        raise OptionError(
            f"option {name!r} of plugin {plugin!r}: found {value!r} of type "
            f"{type(value).__name__}, expected {expected.__name__}"
        )
    return value
