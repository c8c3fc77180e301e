"""Calls whose results have another size or type than the tensors that they are written into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import map_aggregate

from pjrt_bridge.torch_interop.compat import OpOverload

SizesAndStrides = tuple[tuple[int, ...], tuple[int, ...]]

_COPYING = frozenset(("_fft_c2c.out", "_fft_c2r.out", "_fft_r2c.out", "cholesky.out"))
"""Operators whose kernels resize `out=` to be row-major and copy into it results that are laid out
in another way (ATen/native/mkl/SpectralOps.cpp, ATen/native/BatchLinearAlgebra.cpp)."""

_ROW_MAJOR = torch.contiguous_format


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


def has_other_type(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `out=` tensors are of another type than the results that are written into them.

    PyTorch refuses some of these calls, and computes in the type of `out` in others; where a call
    is functionalized, its results are cast.

    Args:
        op: the operator.
        args: positional arguments, tensors without memory among them.
        kwargs: keyword arguments.

    Raises:
        Exception: what PyTorch raises for the other arguments.
    """
    named = [
        item.name
        for item in op._schema.arguments
        if item.kwarg_only and item.alias_info is not None and item.alias_info.is_write
    ]
    written = [kwargs.get(name) for name in named]
    rest = {name: item for name, item in kwargs.items() if name not in named}
    given: list[Any] = []
    map_aggregate((args, rest), given.append)
    # What has no other tensors gives what it is asked for.
    if not written or not any(isinstance(item, torch.Tensor) for item in given):
        return False
    found = op.overloadpacket(*args, **rest)
    results = found if isinstance(found, (tuple, list)) else (found,)
    return any(
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.dtype != other.dtype
        for one, other in zip(results, written, strict=False)
    )


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
    if op.__name__ in _COPYING:
        new = {key: torch.empty_like(item, memory_format=_ROW_MAJOR) for key, item in new.items()}
    return [(tuple(item.shape), item.stride()) for item in new.values()]
