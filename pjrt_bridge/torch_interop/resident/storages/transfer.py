"""Elements between resident tensors, host memory and other devices."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ResourceExhausted
from pjrt_bridge.runtime import Buffer, CompileOptions, ShardedBuffer
from pjrt_bridge.runtime.buffers import putting
from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer, MeshProgram
from pjrt_bridge.runtime.transfers.host import HostArray
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat.devices.sparse_tensors import is_sparse, made_of, parts_of
from pjrt_bridge.torch_interop.lowering.context import INT64, Context
from pjrt_bridge.torch_interop.lowering.shaping import strided
from pjrt_bridge.torch_interop.resident.client import failures
from pjrt_bridge.torch_interop.resident.client.chosen import chosen, client, of_client
from pjrt_bridge.torch_interop.resident.client.refusals import need_strides
from pjrt_bridge.torch_interop.resident.recent import Recent
from pjrt_bridge.torch_interop.resident.storages.storage import (
    Contents,
    Geometry,
    contents_of,
    geometry_of,
    resident_tensor,
)
from pjrt_bridge.torch_interop.tensors import adopt


class Counts:
    """Bytes that crossed between the host and the device in this process.

    Attributes:
        to_device: bytes of tensors that were brought to the device.
        to_host: bytes that were brought back.
    """

    def __init__(self) -> None:
        self.to_device = 0
        self.to_host = 0


COUNTS = Counts()

_BYTE = dtypes.of("uint8")


def put(tensor: torch.Tensor, index: int, spec: ValueSpec | None = None) -> Buffer:
    """A buffer of a copy of a host tensor's elements, in row-major order or as a spec has them."""
    return put_array(array_of(tensor, spec), index)


def array_of(tensor: torch.Tensor, spec: ValueSpec | None = None) -> torch.Tensor:
    """A copy of a host tensor as a row-major array, which the user does not write into."""
    dense = tensor.detach().resolve_conj().resolve_neg()
    if spec is not None and spec.order is not None:
        dense = dense.permute(spec.order)
    return dense.clone(memory_format=torch.contiguous_format)


def put_array(array: torch.Tensor, index: int) -> Buffer:
    """A buffer of a row-major host tensor, which nobody writes into any more."""
    owner, device = chosen(index)
    type = type_of(array)
    COUNTS.to_device += type.nbytes
    host = HostArray(array.data_ptr(), type.dtype, type.shape, None, array)
    try:
        return putting.put_host(owner, host, device)
    except ResourceExhausted as error:
        raise failures.told(error, "copy to the device", [type], index) from error.__cause__


def to_device(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """A resident tensor of a copy of a host tensor's elements, with its strides if it is dense.

    Raises:
        DeviceError: it is of a layout that the device does not have.
    """
    if is_sparse(tensor):
        return made_of([to_device(item, index) for item in parts_of(tensor)], tensor)
    need_strides(tensor)
    spec = ValueSpec.argument(type_of(tensor), tensor.stride())
    return resident_tensor(put(tensor, index, spec), spec, index)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor of a copy of a resident tensor's elements, with its strides if it is dense."""
    if is_sparse(tensor):
        return made_of(list(map(to_host, parts_of(tensor))), tensor)
    client()
    contents = contents_of(tensor)
    type = TensorType(tuple(tensor.shape), dtypes.from_torch(tensor.dtype))
    spec = ValueSpec.argument(type, tensor.stride())
    place = place_of(tensor, contents, spec)
    COUNTS.to_host += spec.nbytes
    with compat.real_tensors(), failures.seen_later():
        if place is not None and _is_readable_in_place(contents, place):
            return _part_in_place(contents.buffer, place, spec)
        found = adopt(contents.buffer if place is None else read(contents, place), spec)
        # The memory may be that of the buffer, which nobody may write into.
        return found.clone() if contents.buffer.client.shares_host_memory else found


def _is_readable_in_place(contents: Contents, place: Geometry) -> bool:
    """Whether the host can read a part of an array where it is: no program has to copy it."""
    buffer = contents.buffer
    shares = isinstance(buffer, Buffer) and buffer.client.shares_host_memory
    return shares and place.dtype is contents.dtype


def _part_in_place(buffer: AnyBuffer, place: Geometry, spec: ValueSpec) -> torch.Tensor:
    """A copy of a part of an array in host memory; `place` is that of the array of `spec`."""
    whole = adopt(buffer, ValueSpec.row_major(buffer.type))
    part = whole.as_strided(place.shape, place.strides, place.offset)
    dense = part.clone(memory_format=torch.contiguous_format)
    return dense.as_strided(spec.type.shape, spec.strides)


def to_host_in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The same, where it is in a copy of all that its storage holds."""
    elements = contents_of(tensor).buffer
    whole = ValueSpec.row_major(elements.type)
    with compat.real_tensors():
        memory = to_host(resident_tensor(elements, whole, contents_of(tensor).index))
        found = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(memory.untyped_storage())
        if tensor.is_conj():
            found.conj_physical_()
        if tensor.is_neg():
            found.neg_()
        return found.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def buffer_as(tensor: torch.Tensor, spec: ValueSpec) -> AnyBuffer:
    """The elements of a resident tensor as the row-major array that a program takes."""
    contents = contents_of(tensor)
    place = place_of(tensor, contents, spec)
    return contents.buffer if place is None else read(contents, place)


def place_of(tensor: torch.Tensor, contents: Contents, spec: ValueSpec) -> Geometry | None:
    """Where the row-major array that a program takes is in a storage; None: it is all of it."""
    geometry = geometry_of(tensor, contents)
    if geometry is None:
        if spec.order is None and spec.memory.shape == contents.shape:
            return None
        geometry = Geometry(
            contents.dtype,
            contents.shape,
            Layout.default(len(contents.shape)).strides(contents.shape),
            0,
        )
    in_memory = _permuted(geometry, spec)
    if (
        in_memory.shape == contents.shape
        and in_memory.dtype is contents.dtype
        and not in_memory.offset
        and in_memory.strides == Layout.default(len(contents.shape)).strides(contents.shape)
    ):
        return None
    return in_memory


def _permuted(geometry: Geometry, spec: ValueSpec) -> Geometry:
    """Where the elements of the array in memory that a spec describes are."""
    order = range(len(geometry.shape)) if spec.order is None else spec.order
    once = spec.once.shape
    return geometry._replace(
        shape=tuple(once[d] for d in order),
        # Strides of dimensions of size 1 say nothing.
        strides=_plain_strides(
            tuple(once[d] for d in order), tuple(geometry.strides[d] for d in order)
        ),
    )


def _plain_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    row_major = Layout.default(len(shape)).strides(shape)
    same = all(
        size <= 1 or one == other
        for size, one, other in zip(shape, strides, row_major, strict=True)
    )
    return row_major if same else strides


def read(contents: Contents, geometry: Geometry) -> AnyBuffer:
    """The elements of a view of a storage, as a row-major array."""
    return _run("read", contents, geometry, [contents.buffer])


def write(contents: Contents, geometry: Geometry, elements: AnyBuffer) -> None:
    """Replace the elements of a view of a storage by those of a row-major array of its shape."""
    contents.assign(_run("write", contents, geometry, [contents.buffer, elements]))


def retype(contents: Contents, dtype: torch.dtype) -> bool:
    """Have a storage hold the same bytes as elements of another type, in one dimension.

    Returns:
        Whether it does: not where bytes would be left over, nor as bools, which have one bit.
    """
    new = dtypes.from_torch(dtype)
    count, rest = divmod(contents.type.nbytes, new.itemsize)
    if rest or new.is_bool:
        return False
    if contents.is_written:
        contents.replace(read(contents, Geometry(dtype, (count,), (1,), 0)))
    else:
        contents.clear(TensorType((count,), new))
    return True


_OFFSETS = 4
"""Offsets of views, of one shape and strides in one array, that programs are made for; further ones
are arguments of a program."""

_seen: Recent[set[int]] = Recent()
_programs: Recent[Any] = Recent()
_compiling = threading.Lock()
of_client(_programs.clear)
of_client(_seen.clear)


def _run(kind: str, contents: Contents, geometry: Geometry, arrays: list[AnyBuffer]) -> AnyBuffer:
    divided = any(isinstance(array, ShardedBuffer) for array in arrays)
    moves = not divided and 0 not in geometry.shape and _moves(kind, contents, geometry)
    program = _program(kind, contents, geometry, divided=divided, moves=moves)
    if moves:
        arrays = [*arrays, _offset(geometry.offset, contents.index)]
    results: Sequence[AnyBuffer] = program.run(arrays) if divided else program.execute(arrays)
    return results[0]


def _moves(kind: str, contents: Contents, geometry: Geometry) -> bool:
    """Whether views that differ from this one in their offset alone are read, or written, too."""
    key = (kind, contents.type, geometry._replace(offset=0), contents.index)
    offsets = _seen.find(key)
    if offsets is None:
        offsets = _seen.add(key, set())
    if len(offsets) < _OFFSETS:
        offsets.add(geometry.offset)
    return geometry.offset not in offsets


def _offset(offset: int, index: int) -> Buffer:
    owner, device = chosen(index)
    number = torch.tensor(offset, device="cpu")
    host = HostArray(number.data_ptr(), INT64, (), None, number)
    return putting.put_host(owner, host, device)


def _program(
    kind: str, contents: Contents, geometry: Geometry, *, divided: bool, moves: bool
) -> Any:
    if moves:
        geometry = geometry._replace(offset=0)
    key = (kind, contents.type, geometry, contents.index, divided, moves)
    found = _programs.find(key)
    if found is None:
        owner, device = chosen(contents.index)
        options = CompileOptions(device_assignment=[[device.id]])
        with _compiling:
            program = _emitted(kind, contents.type, geometry, moves=moves)
            found = (
                MeshProgram(owner, program) if divided else owner.compile(program, options=options)
            )
        _programs.add(key, found)
    return found


def _emitted(kind: str, base: TensorType, geometry: Geometry, *, moves: bool = False) -> Any:
    """The program that reads a view of an array, or writes into it.

    Args:
        kind: `"read"` or `"write"`.
        base: of the array.
        geometry: of the view.
        moves: the offset is the last argument.
    """
    dtype = dtypes.from_torch(geometry.dtype)
    given = [base] if kind == "read" else [base, TensorType(geometry.shape, dtype)]
    builder = Builder([*given, TensorType((), INT64)] if moves else given, name=kind)
    c = Context(builder, ())
    memory = builder.parameters[0]
    form = (geometry.shape, geometry.strides)

    def read(array: Value) -> Value:
        if moves:
            return strided.read_at(c, array, *form, builder.parameters[-1])
        return strided.read(c, array, *form, geometry.offset)

    def write(array: Value, part: Value) -> Value:
        if moves:
            return strided.write_at(c, array, part, *form, builder.parameters[-1])
        return strided.write(c, array, part, *form, geometry.offset)

    if dtype == base.dtype:
        # In its own shape, so that a partitioner can divide both alike.
        if kind == "read":
            return builder.finish([read(memory)])
        return builder.finish([write(memory, builder.parameters[1])])
    elements = c.reshape(memory, (base.size,))
    # Bytes that are not 0 or 1 would be lost in an array of bools.
    as_bytes = dtype.is_bool and not base.dtype.is_bool
    flat = bitcast(c, elements, _BYTE if as_bytes else dtype)
    if kind == "read":
        found = read(flat)
        return builder.finish([c.b.convert(found, dtype) if as_bytes else found])
    part = builder.parameters[1]
    changed = write(flat, c.b.convert(part, _BYTE) if as_bytes else part)
    whole = bitcast(c, changed, base.dtype)
    if whole.size != base.size:
        behind = c.b.slice(elements, (whole.size,), (base.size,), (1,))
        whole = c.b.concatenate([whole, behind], 0)
    return builder.finish([c.reshape(whole, base.shape)])


def bitcast(c: Context, flat: Value, dtype: DType) -> Value:
    """The bytes of flat memory as elements of another type, as many as are whole."""
    if flat.dtype == dtype:
        return flat
    return _of_bytes(c, _bytes_of(c, flat), dtype)


def _bytes_of(c: Context, flat: Value) -> Value:
    dtype = flat.dtype
    if dtype.is_bool:
        return c.b.convert(flat, _BYTE)
    if dtype.is_complex:
        parts = [c.reshape(part, (flat.size, 1)) for part in (c.b.real(flat), c.b.imag(flat))]
        flat = c.reshape(c.b.concatenate(parts, 1), (2 * flat.size,))
    found = c.b.bitcast_convert(flat, _BYTE) if flat.dtype != _BYTE else flat
    return c.reshape(found, (found.size,))


def _of_bytes(c: Context, found: Value, dtype: DType) -> Value:
    count, width = found.size // dtype.itemsize, dtype.itemsize
    if count * width != found.size:
        found = c.b.slice(found, (0,), (count * width,), (1,))
    if dtype.is_bool:
        return c.b.compare(found, c.full(found.shape, 0, _BYTE), "NE")
    if dtype.is_complex:
        part = dtypes.of(f"float{dtype.itemsize * 4}")
        pairs = c.reshape(_of_bytes(c, found, part), (count, 2))
        real, imag = (
            c.reshape(c.b.slice(pairs, (0, at), (count, at + 1), (1, 1)), (count,)) for at in (0, 1)
        )
        return c.b.complex_(real, imag)
    if dtype == _BYTE:
        return found
    return c.b.bitcast_convert(c.reshape(found, (count, width) if width > 1 else (count,)), dtype)


def type_of(tensor: torch.Tensor | Contents) -> TensorType:
    """Shape and element type of a tensor."""
    return TensorType(tuple(tensor.shape), dtypes.from_torch(tensor.dtype))
