"""PJRT_LoadedExecutable_Execute: arguments checked, memory taken, the work left to a device.

A call returns as soon as it has made the results' buffers. Everything that can be refused is
refused before anything is changed: an argument that was donated to a call that then fails would be
lost.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge.stablehlo.interpret import interpreter
from pjrt_bridge_reference.buffer import Array, Buffer
from pjrt_bridge_reference.caller_arguments import (
    address,
    int64s,
    invalid,
    pointers,
    struct,
    unimplemented,
)
from pjrt_bridge_reference.device import Device
from pjrt_bridge_reference.event import Event, when_all
from pjrt_bridge_reference.executable import Executable, layout_of
from pjrt_bridge_reference.loaded import LoadedExecutable
from pjrt_bridge_reference.memory import DEVICE, Block, Storage
from pjrt_bridge_reference.slots import OBJECTS, Slots
from pjrt_bridge_reference.spanning import Meeting
from pjrt_bridge_reference.timeline import span

SLOTS = Slots()


@dataclass
class DevicePart:
    """The part of an execution that runs on one device.

    Attributes:
        device: the device.
        arguments: its arguments.
        held: their memory, in use until the values were read.
        results: its results.
        freed: ends of the uses of memory that results take over.
        ended: the event of its end.
    """

    device: Device
    arguments: list[Buffer]
    held: list[Storage]
    results: list[Buffer]
    freed: list[Event]
    ended: Event


@SLOTS.implements("LoadedExecutable_Execute")
def _execute(args: Any) -> None:
    loaded = OBJECTS.get(args.executable, LoadedExecutable)
    loaded.check_usable()
    try:
        _begin(args, loaded)
    except Status as failure:
        if loaded.spans_processes:
            # The others would wait for this one until their time is over.
            loaded.client.processes.lose(failure)
        raise


def _begin(args: Any, loaded: LoadedExecutable) -> None:
    executable = loaded.executable
    kept = _kept(args.options, executable)
    devices = _devices(args, loaded)
    lists = _arguments(args, executable, devices)
    rows = []
    if executable.signature.results:
        found = pointers(args.output_lists, args.num_devices, "output_lists")
        rows = [address(row, "output_lists") for row in found]
    with loaded.client.donating:
        # Before anything is donated, since it may be refused.
        meeting = Meeting(loaded) if loaded.spans_processes else None
        parts = _prepare(loaded, devices, lists, _donated(executable, lists, kept))
    for part, row in zip(parts, rows, strict=False):
        for index, result in enumerate(part.results):
            ctypes.c_void_p.from_address(row + 8 * index).value = OBJECTS.add(result)
    if args.device_complete_events:
        events = (ctypes.c_void_p * len(parts)).from_address(args.device_complete_events)
        events[:] = [OBJECTS.add(part.ended) for part in parts]
    _submit(loaded, parts, meeting)


# -- what was asked for ----------------------------------------------------------------------------


def _kept(options: int | None, executable: Executable) -> frozenset[int]:
    """Indices of arguments that must not be donated."""
    given = struct("PJRT_ExecuteOptions", options)
    if given.num_send_ops or given.num_recv_ops:
        raise unimplemented("options: send and receive callbacks")
    found = int64s(
        given.non_donatable_input_indices,
        given.num_non_donatable_input_indices,
        "non_donatable_input_indices",
    )
    count = len(executable.signature.parameters)
    for index in found:
        if not 0 <= index < count:
            raise invalid(f"non_donatable_input_indices: {index}; there are {count} parameters")
    return frozenset(found)


def _devices(args: Any, loaded: LoadedExecutable) -> tuple[Device, ...]:
    name = loaded.executable.program.name
    if args.execute_device:
        if loaded.devices:
            raise unimplemented(
                f"execute_device: executable {name!r} was compiled for devices of its own"
            )
        devices: tuple[Device, ...] = (loaded.client.device(args.execute_device),)
    elif not loaded.devices:
        raise invalid(f"execute_device is NULL; executable {name!r} runs on any device")
    else:
        devices = loaded.devices
    if args.num_devices != len(devices):
        raise invalid(f"num_devices is {args.num_devices}, {name!r} runs on {len(devices)}")
    return devices


def _arguments(args: Any, executable: Executable, devices: Sequence[Device]) -> list[list[Buffer]]:
    parameters = executable.signature.parameters
    if args.num_args != len(parameters):
        raise invalid(f"num_args is {args.num_args}, the program has {len(parameters)} parameters")
    if not parameters:
        return [[] for _ in devices]
    lists = []
    rows = pointers(args.argument_lists, len(devices), "argument_lists")
    for row, device in zip(rows, devices, strict=True):
        found = pointers(row, len(parameters), "argument_lists")
        buffers = [OBJECTS.get(pointer, Buffer) for pointer in found]
        # Types, shapes and layouts of equal size would give wrong results without an error.
        for index, (buffer, parameter) in enumerate(zip(buffers, parameters, strict=True)):
            where = f"argument {index} of {executable.program.name!r}"
            if buffer.type != parameter.type:
                raise invalid(f"{where} is {buffer.type}, expected {parameter.type}")
            if buffer.order != layout_of(parameter):
                raise invalid(
                    f"{where} has the layout {buffer.order}, expected {layout_of(parameter)}"
                )
            if buffer.memory not in device.memories:
                raise invalid(
                    f"{where} is on device {buffer.memory.device_id}, expected {device.id}"
                )
        lists.append(buffers)
    return lists


def _donated(
    executable: Executable, lists: Sequence[Sequence[Buffer]], kept: frozenset[int]
) -> list[frozenset[int]]:
    """For each device the arguments that the execution consumes."""
    found = []
    for buffers in lists:
        donated = frozenset(
            index
            for index in executable.donors
            # Memory that others view stays as it is.
            if index not in kept and not buffers[index].references
        )
        for index in donated:
            if sum(buffer is buffers[index] for buffer in buffers) > 1:
                raise invalid(f"argument {index} is donated, and passed a second time")
        found.append(donated)
    return found


# -- memory ----------------------------------------------------------------------------------------


def _prepare(
    loaded: LoadedExecutable,
    devices: Sequence[Device],
    lists: Sequence[list[Buffer]],
    donated: Sequence[frozenset[int]],
) -> list[DevicePart]:
    """Take memory, or raise and leave everything as it was; then donate."""
    executable = loaded.executable
    held: list[Storage] = []
    taken: list[Block] = []
    plans: list[list[Block | None]] = []
    try:
        for buffers in lists:
            for buffer in buffers:
                held.append(buffer.use())  # noqa: PERF401 - a failure must leave the others here
        for device, buffers, consumed in zip(devices, lists, donated, strict=True):
            blocks: list[Block | None] = []
            for index, result in enumerate(executable.signature.results):
                if _reuses(executable, index, buffers, consumed):
                    blocks.append(None)
                    continue
                taken.append(device.memories[0].allocate(result.type.nbytes))
                blocks.append(taken[-1])
            plans.append(blocks)
    except Status:
        for storage in held:
            storage.release()
        for block in taken:
            block.free()
        raise
    parts = []
    for device, buffers, consumed, blocks in zip(devices, lists, donated, plans, strict=True):
        storages = [held.pop(0) for _ in buffers]
        parts.append(_part(loaded, device, buffers, storages, consumed, blocks))
    return parts


def _reuses(
    executable: Executable, result: int, buffers: Sequence[Buffer], donated: frozenset[int]
) -> bool:
    """Whether a result takes the memory of the donated argument that it aliases."""
    alias = executable.aliases[result]
    if alias is None or alias not in donated:
        return False
    buffer = buffers[alias]
    fits = buffer.order == layout_of(executable.signature.results[result])
    return fits and buffer.writable and buffer.memory.kind == DEVICE


def _part(
    loaded: LoadedExecutable,
    device: Device,
    buffers: list[Buffer],
    held: list[Storage],
    donated: frozenset[int],
    blocks: Sequence[Block | None],
) -> DevicePart:
    executable, ended = loaded.executable, Event()
    results, freed = [], []
    given = set(donated)
    for index, (block, result) in enumerate(zip(blocks, executable.signature.results, strict=True)):
        if block is None:
            alias = executable.aliases[index]
            assert alias is not None
            given.discard(alias)
            freed.append(buffers[alias].storage.unused)
            block = buffers[alias].donate()
        results.append(
            Buffer(loaded.client, result.type, layout_of(result), device.memories[0], block, ended)
        )
    for index in given:
        buffers[index].delete()
    return DevicePart(device, buffers, held, results, freed, ended)


# -- work ------------------------------------------------------------------------------------------


def _submit(loaded: LoadedExecutable, parts: list[DevicePart], meeting: Meeting | None) -> None:
    """Leave the work to the devices: together where the program connects them, else to each."""
    together = [parts] if loaded.executable.parallel else [[part] for part in parts]
    for group in together:
        # The results' memory is in use until it is written, also of results that are dropped.
        outputs = [result.use() for part in group for result in part.results]
        arrays = [[result.array() for result in part.results] for part in group]
        _submit_group(loaded, group, arrays, outputs, meeting)


def _submit_group(
    loaded: LoadedExecutable,
    group: list[DevicePart],
    targets: list[list[Array]],
    outputs: list[Storage],
    meeting: Meeting | None,
) -> None:
    executable, worker = loaded.executable, group[0].device.worker

    def compute() -> None:
        failure = _failure_of_arguments(group)
        values: list[tuple[Array, ...]] = []
        if failure is None or meeting is not None:
            with span(worker.name, executable.program.name):
                time.sleep(loaded.client.latency)
                try:
                    values = _compute(loaded, group, meeting, failure)
                except Status as error:
                    failure = error
                except Exception as error:
                    # Whatever it is, the event has to end: a caller may wait for it.
                    failure = Status(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")
        for part in group:
            for storage in part.held:
                storage.release()

        def finish() -> None:
            for target, value in zip(targets, values, strict=False):
                for place, array in zip(target, value, strict=True):
                    place[...] = array
            for storage in outputs:
                storage.release()
            for part in group:
                part.ended.end(failure)

        # Others may read still what a result is about to replace.
        when_all([event for part in group for event in part.freed], finish)

    arguments = [buffer.ready for part in group for buffer in part.arguments]
    if meeting is None:
        when_all(arguments, lambda: worker.submit(compute))
        return

    def compute_in_turn() -> None:
        # The others may need what was begun before, and nothing else is done on this thread.
        for event in arguments:
            event.wait()
        compute()

    meeting.submit(compute_in_turn)


def _failure_of_arguments(group: list[DevicePart]) -> Status | None:
    for part in group:
        for index, buffer in enumerate(part.arguments):
            failure = buffer.ready.failure
            if failure is not None:
                return Status(failure.code, f"argument {index}: {failure.message}")
    return None


def _compute(
    loaded: LoadedExecutable,
    group: list[DevicePart],
    meeting: Meeting | None,
    failure: Status | None,
) -> list[tuple[Array, ...]]:
    executable = loaded.executable
    arrays: list[list[Array]] = []
    if failure is None:
        arrays = [[buffer.array() for buffer in part.arguments] for part in group]
    if meeting is not None:
        arrays = meeting.gather(arrays, failure)
    if not executable.parallel:
        return [interpreter.evaluate(executable.program, *arrays[0])]
    columns = executable.options.partitions
    grid = [arrays[start : start + columns] for start in range(0, len(arrays), columns)]
    found = [
        outputs
        for row in interpreter.evaluate_parallel(executable.program, grid)
        for outputs in row
    ]
    return [found[position] for position in loaded.positions]
