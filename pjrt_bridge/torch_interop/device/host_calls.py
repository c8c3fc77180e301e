"""Operators on resident tensors that PyTorch computes: copied to the host, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import map_aggregate

from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.device import border, transfer
from pjrt_bridge.torch_interop.device.calls import argument, form_of, tensors_in
from pjrt_bridge.torch_interop.device.chosen import client
from pjrt_bridge.torch_interop.device.factories import resize_as
from pjrt_bridge.torch_interop.device.naming import NAME
from pjrt_bridge.torch_interop.device.storage import is_resident
from pjrt_bridge.torch_interop.device.templates import with_tensors
from pjrt_bridge.torch_interop.ledger import EAGER


def run_on_host(
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    index: int,
    reason: str | None,
) -> Any:
    """Run an operator in PyTorch on copies in host memory; its results on the device.

    Args:
        op: the operator.
        args: positional arguments.
        kwargs: keyword arguments.
        index: of the device that results are brought to.
        reason: why; warned of once. None where this is what everybody expects.

    Raises:
        Exception: the operator's own.
    """
    copies: dict[int, torch.Tensor] = {}

    def host(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if not is_resident(value):
                return value
            if id(value) not in copies:
                copies[id(value)] = transfer.to_host(value)
            return copies[id(value)]
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
            copy = copies.get(id(tensor))
            if copy is not None:
                _assign(tensor, copy)

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
    resize_as(tensor, tuple(copy.shape), copy.stride())
    buffer = transfer.put(copy, tensor.device.index or 0)
    border.replace_elements(tensor, buffer, ValueSpec.row_major(buffer.type))
