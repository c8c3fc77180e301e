"""Calls that write into memory that they read as well, of which PyTorch refuses some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import map_aggregate

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.resident.calls.calls import tensors_in
from pjrt_bridge.torch_interop.resident.storages.storage import is_resident

_REFUSAL = "unsupported operation:"
"""How PyTorch's errors about memory begin (ATen/MemoryOverlap.cpp)."""


def need_apart(
    op: OpOverload, written: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Refuse a call that writes into memory of other arguments, where PyTorch refuses it.

    Which overlaps an operator takes is in its kernels alone: where there is one, PyTorch is asked,
    by a call on host tensors of zeros that share memory as those of the call do.

    Args:
        op: the operator.
        written: the tensors that it writes into.
        args: positional arguments.
        kwargs: keyword arguments.

    Raises:
        RuntimeError: PyTorch's own.
    """
    given = [item for item in tensors_in((*args, *kwargs.values())) if is_resident(item)]
    pointwise = torch.Tag.pointwise in op.tags
    if not any(_is_in_question(item, given, pointwise) for item in written):
        return
    if torch.Tag.nondeterministic_seeded in op.tags:
        # PyTorch would draw, which changes its generator.
        return
    try:
        with compat.real_tensors():
            positional, named = _on_host(args, kwargs)
            op(*positional, **named)
    except Exception as error:
        # What else is wrong is found where the call is traced or run.
        if str(error).startswith(_REFUSAL):
            raise


def _is_in_question(written: torch.Tensor, given: Sequence[torch.Tensor], pointwise: bool) -> bool:
    """Whether a tensor shares memory with another argument in a way that some operators refuse.

    Pointwise operators take all of it as another argument: they have read an element when they
    write it.
    """
    place = written.untyped_storage().data_ptr()
    first, end = _range(written)
    own = 0
    for other in given:
        if other is written:
            own += 1
        elif other.untyped_storage().data_ptr() == place:
            start, stop = _range(other)
            same = (
                other.shape == written.shape
                and other.stride() == written.stride()
                and other.itemsize == written.itemsize
            )
            if start < end and first < stop and not (pointwise and same and start == first):
                return True
    return own > 1 and not pointwise


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the one behind its last."""
    if not tensor.numel():
        return 0, 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    first, size = int(tensor.storage_offset()), tensor.dtype.itemsize
    return first * size, (first + last + 1) * size


def _on_host(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    memory: dict[int, torch.UntypedStorage] = {}
    made: dict[int, torch.Tensor] = {}

    def host(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, torch.Tensor) or not is_resident(value):
            return value
        if id(value) not in made:
            storage = value.untyped_storage()
            place = storage.data_ptr()
            if place not in memory:
                memory[place] = torch.zeros(
                    storage.nbytes(), dtype=torch.uint8, device="cpu"
                ).untyped_storage()
            made[id(value)] = torch.empty(0, dtype=value.dtype, device="cpu").set_(
                memory[place], int(value.storage_offset()), value.shape, value.stride()
            )
        return made[id(value)]

    return map_aggregate((tuple(args), dict(kwargs)), host)
