"""Calls whose results have another size than the tensors that they are to be written into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import map_aggregate

from pjrt_bridge.torch_interop.compat import OpOverload

SizesAndStrides = tuple[tuple[int, ...], tuple[int, ...]]


class Resizes(Exception):
    """A call whose results do not fit into the tensors that they are to be written into.

    Attributes:
        forms: sizes and strides that these tensors have to get.
    """

    def __init__(self, forms: Sequence[SizesAndStrides]) -> None:
        super().__init__(forms)
        self.forms = forms


def called(
    step: Callable[..., Any],
    op: OpOverload,
    arguments: tuple[Sequence[Any], Mapping[str, Any]],
    written: Sequence[torch.Tensor],
) -> Any:
    """The results of a call that is traced.

    Args:
        step: what is called.
        op: the operator that it stands for.
        arguments: positional and keyword ones.
        written: those that it writes into.

    Raises:
        Resizes: these have other sizes then.
    """
    before = [tuple(item.shape) for item in written]
    if any(0 in shape for shape in before):
        # A view cannot be resized while it is functionalized.
        forms = _sizes_and_strides(op, arguments, written, before)
        if [shape for shape, _ in forms] != before:
            raise Resizes(forms)
    found = step(*arguments[0], **arguments[1])
    if [tuple(item.shape) for item in written] != before:
        raise Resizes(_sizes_and_strides(op, arguments, written, before))
    return found


def _sizes_and_strides(
    op: OpOverload,
    arguments: tuple[Sequence[Any], Mapping[str, Any]],
    written: Sequence[torch.Tensor],
    shapes: Sequence[tuple[int, ...]],
) -> list[SizesAndStrides]:
    """Sizes and strides of what an operator writes where that has another size.

    Those of views are lost where they are functionalized, so it writes into new tensors.
    """
    new = {
        id(item): torch.empty(shape, dtype=item.dtype, device="cpu")
        for item, shape in zip(written, shapes, strict=True)
    }
    args, kwargs = map_aggregate(arguments, lambda item: new.get(id(item), item))
    op(*args, **kwargs)
    return [(tuple(item.shape), item.stride()) for item in new.values()]
