"""The compile options: the fields of a CompileOptionsProto that mean something to an interpreter.

Source: xla/pjrt/proto/compile_options.proto. Fields that are not read here ask for nothing that
changes a result.
"""

from __future__ import annotations

from dataclasses import dataclass

from pjrt_bridge import wire
from pjrt_bridge_reference.caller_arguments import invalid

_BUILD_OPTIONS, _PORTABLE, _OVERRIDES = 3, 4, 7
_REPLICAS, _PARTITIONS, _SPMD, _ASSIGNMENT, _SHARDY = 4, 5, 6, 9, 19
_MOST_DEVICES = 1 << 16


@dataclass(frozen=True)
class Options:
    """Options for compiling a program.

    Attributes:
        replicas: copies of the program.
        partitions: devices that share one copy.
        spmd: the program is of all partitions together, to be divided by its shardings.
        assignment: device ids, replicas outermost; None leaves the choice to the plugin.
        portable: each execution names its device.
        shardy: the shardings are Shardy's.
    """

    replicas: int = 1
    partitions: int = 1
    spmd: bool = False
    assignment: tuple[int, ...] | None = None
    portable: bool = False
    shardy: bool = False

    @property
    def devices(self) -> int:
        """Devices of one execution."""
        return self.replicas * self.partitions


def read_options(data: bytes) -> Options:
    """Parse a CompileOptionsProto.

    Raises:
        Status: INVALID_ARGUMENT; no such message, without a number of replicas and partitions, or
            with flags of a compiler.
    """
    try:
        return _read(data)
    except ValueError as error:
        raise invalid(f"compile_options: no CompileOptionsProto: {error}") from None


def _read(data: bytes) -> Options:
    found: dict[int, int] = {_REPLICAS: 0, _PARTITIONS: 0, _SPMD: 0, _SHARDY: 0}
    assignment: tuple[int, ...] | None = None
    portable = False
    for number, value in wire.fields(data):
        if number == _PORTABLE:
            portable = bool(_number(value))
        elif number == _OVERRIDES:
            flag = next((item for key, item in wire.fields(_bytes(value)) if key == 1), b"")
            name = _bytes(flag).decode(errors="replace")
            raise invalid(f"compile_options: unknown compiler flag {name!r}; there are none")
        elif number == _BUILD_OPTIONS:
            for inner, item in wire.fields(_bytes(value)):
                if inner in found:
                    found[inner] = _number(item)
                elif inner == _ASSIGNMENT:
                    assignment = _assignment(_bytes(item))
    replicas, partitions = found[_REPLICAS], found[_PARTITIONS]
    # Zero is what an empty message says, and no number of devices.
    if min(replicas, partitions) < 1 or replicas * partitions > _MOST_DEVICES:
        raise invalid(f"compile_options: {replicas} replicas of {partitions} partitions")
    if assignment is not None and len(assignment) != replicas * partitions:
        raise invalid(
            f"compile_options: a device assignment of {len(assignment)} devices, for {replicas} "
            f"replicas of {partitions} partitions"
        )
    return Options(
        replicas, partitions, bool(found[_SPMD]), assignment, portable, bool(found[_SHARDY])
    )


def _assignment(data: bytes) -> tuple[int, ...]:
    """Device ids of a DeviceAssignmentProto, which lists them by partition, by replica."""
    columns: list[list[int]] = []
    for number, value in wire.fields(data):
        if number == 3:
            ids = [_numbers(item) for key, item in wire.fields(_bytes(value)) if key == 1]
            columns.append([id for part in ids for id in part])
    if len({len(column) for column in columns}) > 1:
        raise ValueError("a device assignment whose partitions have different numbers of replicas")
    return tuple(id for row in zip(*columns, strict=True) for id in row)


def write_assignment(replicas: int, partitions: int, ids: list[int]) -> bytes:
    """A DeviceAssignmentProto of device ids with the replicas outermost."""
    columns = b"".join(
        wire.message(
            3, b"".join(wire.varint(1, ids[row * partitions + column]) for row in range(replicas))
        )
        for column in range(partitions)
    )
    return wire.varint(1, replicas) + wire.varint(2, partitions) + columns


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError(f"found {len(value)} bytes, expected a number")
    return wire.signed(value)


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError(f"found the number {value}, expected a message")
    return value


def _numbers(value: int | bytes) -> list[int]:
    """The numbers of a repeated field: one, or packed."""
    if isinstance(value, int):
        return [wire.signed(value)]
    # Packed numbers are what is left of fields without their keys, so each is given one.
    found, start = [], 0
    for at, byte in enumerate(value):
        if byte < 0x80:
            ((_, number),) = wire.fields(wire.key(1, wire.VARINT) + value[start : at + 1])
            found.append(_number(number))
            start = at + 1
    if start != len(value):
        raise ValueError("packed numbers end within a number")
    return found
