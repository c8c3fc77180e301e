"""Operators on resident tensors that PyTorch computes: copied to the host, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import map_aggregate

from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.compat.devices import sparse_tensors
from pjrt_bridge.torch_interop.ledger import EAGER
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.resident.calls.calls import argument, form_of, tensors_in
from pjrt_bridge.torch_interop.resident.calls.templates import with_tensors
from pjrt_bridge.torch_interop.resident.client.chosen import client
from pjrt_bridge.torch_interop.resident.storages import replacement, transfer
from pjrt_bridge.torch_interop.resident.storages.factories import resize_as
from pjrt_bridge.torch_interop.resident.storages.storage import (
    contents_of,
    is_resident,
    resident_tensor,
)


class Copies:
    """Copies in host memory of the tensors of a call."""

    def __init__(self) -> None:
        self._copies: dict[int, torch.Tensor] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy of a tensor."""
        if id(tensor) not in self._copies:
            self._copies[id(tensor)] = self._made(tensor)
        return self._copies[id(tensor)]

    def _made(self, tensor: torch.Tensor) -> torch.Tensor:
        return transfer.to_host(tensor)

    def give_back(self, tensor: torch.Tensor) -> None:
        """Give a tensor the elements of its copy, which the operator wrote."""
        _assign(tensor, self.of(tensor))


class CopiesOfStorages(Copies):
    """The same, as views of copies of all that storages hold: no programs read and write parts."""

    def __init__(self) -> None:
        super().__init__()
        self._memories: dict[int, torch.Tensor] = {}

    def _made(self, tensor: torch.Tensor) -> torch.Tensor:
        contents = contents_of(tensor)
        memory = self._memories.get(id(contents))
        if memory is None:
            if contents.is_written:
                elements = contents.buffer
                whole = ValueSpec.row_major(elements.type)
                memory = transfer.to_host(resident_tensor(elements, whole, contents.index))
            else:
                memory = torch.empty(contents.shape, dtype=contents.dtype, device="cpu")
            self._memories[id(contents)] = memory
        return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def give_back(self, tensor: torch.Tensor) -> None:
        """The same, in what its storage holds."""
        copy = self.of(tensor)
        if copy.shape != tensor.shape:
            _assign(tensor, copy)
            return
        contents = contents_of(tensor)
        contents.assign(transfer.put(self._memories[id(contents)], contents.index))


def run_on_host(
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    index: int,
    reason: str | None,
    copies: Copies | None = None,
) -> Any:
    """Run an operator in PyTorch on copies in host memory; its results on the device.

    Args:
        op: the operator.
        args: positional arguments.
        kwargs: keyword arguments.
        index: of the device that results are brought to.
        reason: why; warned of once. None where this is what everybody expects.
        copies: how tensors are copied; each by itself by default.

    Raises:
        Exception: the operator's own.
    """
    kept = Copies() if copies is None else copies

    def host(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if not is_resident(value):
                return value
            return kept.of(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(host, value))
        if isinstance(value, torch.device) and value.type == NAME:
            return torch.device("cpu")
        return value

    given = with_tensors(op, list(map(host, args)))
    found = op(*given, **{name: host(value) for name, value in kwargs.items()})
    if reason is not None:
        EAGER.warn_once(
            f"plugin {client().plugin.name!r} does not run {op} on device {NAME!r}, PyTorch does, "
            f"on copies: {reason}"
        )
    form = form_of(op)
    for where in form.written:
        for tensor in tensors_in(argument(where, args, kwargs)):
            if is_resident(tensor):
                kept.give_back(tensor)

    def back(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return transfer.to_device(value, index)
        if isinstance(value, (list, tuple)):
            return type(value)(map(back, value))
        return value

    if not form.returns:
        return None
    results = found if len(form.returns) > 1 else (found,)
    made = tuple(
        back(item) if where is None else argument(where, args, kwargs)
        for where, item in zip(form.returns, results, strict=True)
    )
    return made if len(made) > 1 else made[0]


def elements_once(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a tensor that has each element in memory once, where dimensions repeat elements."""
    sizes, strides = tensor.shape, tensor.stride()
    if not any(not step and size > 1 for size, step in zip(sizes, strides, strict=True)):
        return tensor
    once = [size if step else 1 for size, step in zip(sizes, strides, strict=True)]
    return tensor.as_strided(once, strides, tensor.storage_offset())


def write_repeated(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """An operator that writes into its first argument, which repeats elements, in host memory.

    Args:
        op: the operator.
        args: positional arguments.
        kwargs: keyword arguments.

    Raises:
        Exception: the operator's own.
    """
    tensor: torch.Tensor = args[0]
    once = elements_once(tensor)
    copy = transfer.to_host(once)

    def host(value: Any) -> Any:
        return transfer.to_host(value) if is_resident(value) else value

    others, named = map_aggregate((tuple(args[1:]), dict(kwargs)), host)
    op(copy.expand(tensor.shape), *others, **named)
    _assign(once, copy)
    return tensor


def _assign(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    """Give a resident tensor the elements of a host tensor, and its size where that is another."""
    if sparse_tensors.is_sparse(tensor):
        sparse_tensors.replace(tensor, transfer.to_device(copy, tensor.device.index or 0))
        return
    resize_as(tensor, tuple(copy.shape), copy.stride())
    buffer = transfer.put(copy, tensor.device.index or 0)
    replacement.replace_elements(tensor, buffer, ValueSpec.row_major(buffer.type))
