"""Layouts: how arrays lie on the device, of types, buffers and programs.

A layout that a function returns is the caller's to destroy; those of an executable are its own.
"""

from __future__ import annotations

import weakref
from typing import Any

from pjrt_bridge.abi.extension_structs import by_name
from pjrt_bridge.abi.implement import Implementation
from pjrt_bridge.stablehlo import Parameter, Result
from pjrt_bridge_reference import serialized
from pjrt_bridge_reference.buffer import Buffer
from pjrt_bridge_reference.caller_arguments import dtype, shape
from pjrt_bridge_reference.client import Client
from pjrt_bridge_reference.executable import Executable, layout_of
from pjrt_bridge_reference.layout import Order, row_major
from pjrt_bridge_reference.slots import OBJECTS, Slots
from pjrt_bridge_reference.topology import Topology

SLOTS = Slots()


def add_to(table: Implementation) -> None:
    """Put the extension into a table's chain."""
    table.add_extension(by_name("Layouts"), SLOTS)


class MemoryLayout:
    """An order of dimensions.

    Attributes:
        text: as XLA spells it, such as `{1,0}`.
    """

    def __init__(self, order: Order) -> None:
        self.text = f"{{{','.join(map(str, order))}}}".encode()


@SLOTS.implements("MemoryLayout_Destroy")
def _destroy(args: Any) -> None:
    if args.layout:
        OBJECTS.remove(args.layout, MemoryLayout)


@SLOTS.implements("MemoryLayout_Serialize")
def _serialize(args: Any) -> None:
    blob = serialized.Blob(OBJECTS.get(args.layout, MemoryLayout).text)
    args.serialized_bytes, args.serialized_bytes_size = blob.text
    args.serialized_layout = OBJECTS.add(blob)
    args.serialized_layout_deleter = serialized.DELETER


def _default(args: Any) -> int:
    rank = len(shape(args.dims, args.num_dims, dtype(args.type)))
    return OBJECTS.add(MemoryLayout(row_major(rank)))


@SLOTS.implements("Client_GetDefaultLayout")
def _client_default(args: Any) -> None:
    OBJECTS.get(args.client, Client)
    args.layout = _default(args)


@SLOTS.implements("Topology_GetDefaultLayout")
def _topology_default(args: Any) -> None:
    OBJECTS.get(args.topology_description, Topology)
    args.layout = _default(args)


@SLOTS.implements("Buffer_MemoryLayout")
def _of_buffer(args: Any) -> None:
    args.layout = OBJECTS.add(MemoryLayout(OBJECTS.get(args.buffer, Buffer).order))


@SLOTS.implements("Executable_GetOutputLayouts")
def _of_outputs(args: Any) -> None:
    executable = OBJECTS.get(args.executable, Executable)
    args.layouts = _owned(executable, "outputs", executable.signature.results)
    args.num_outputs = len(executable.signature.results)


@SLOTS.implements("Executable_GetParameterLayouts")
def _of_parameters(args: Any) -> None:
    executable = OBJECTS.get(args.executable, Executable)
    args.layouts = _owned(executable, "parameters", executable.signature.parameters)
    args.num_parameters = len(executable.signature.parameters)


_kept: weakref.WeakKeyDictionary[Executable, dict[str, int]] = weakref.WeakKeyDictionary()


def _owned(executable: Executable, which: str, values: tuple[Parameter | Result, ...]) -> int:
    """Address of an array of layouts that live as long as an executable."""
    kept = _kept.setdefault(executable, {})
    if which not in kept:
        pointers = [OBJECTS.add(MemoryLayout(layout_of(value))) for value in values]
        kept[which] = executable.keep.pointers(pointers)
        weakref.finalize(executable, _forget, pointers)
    return kept[which]


def _forget(pointers: list[int]) -> None:
    for pointer in pointers:
        OBJECTS.remove(pointer, MemoryLayout)
