"""Options of a compilation: checked here, because a plugin may abort on a bad one.

`CompileOptions` becomes a serialized `CompileOptionsProto` (xla/pjrt/proto/compile_options.proto);
the few fields that the bridge sets are encoded here, which needs no protobuf package.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pjrt_bridge import wire
from pjrt_bridge.abi.values import utf8
from pjrt_bridge.errors import OptionError

Override = str | bool | int | float
"""Value of one compiler flag (`OptionOverrideProto`)."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options for compiling a program.

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
