"""Arguments that an operator may refuse, made of what torch's database has for it.

`own`: the database's own inputs that have to raise. `empty`: samples in which a size is 0.
`dtypes`: samples of which tensors have another element type. `indices`: samples whose integer
tensors hold a number that is out of range. Whether eager refuses them is found out by calling it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as database
from torch.utils import _pytree as pytree

from tests.errors.case import KINDS, Case
from tests.opinfo import cases
from tests.opinfo.case import Case as OperatorCase
from tests.opinfo.cases import Sample

MOST = 8
"""Calls of a made kind."""

UNSAFE = frozenset(
    (
        Case("lu_unpack", "empty"),
        Case("_segment_reduce.lengths", "empty"),
        Case("_segment_reduce.offsets", "empty"),
        Case("_segment_reduce.lengths", "indices"),
        Case("_segment_reduce.offsets", "indices"),
    )
)
"""What makes eager read or write beyond its memory."""

_INTEGERS = (torch.int64, torch.int32)
_FAR = 1000


def all_cases() -> Iterator[Case]:
    """Every case, in the order of the database."""
    for info in database.op_db:
        for kind in KINDS:
            case = Case(info.full_name, kind)
            if case not in UNSAFE and (kind != "own" or info.error_inputs_func is not None):
                yield case


def calls(info: Any, case: Case) -> list[Sample]:
    """The calls of a case, the same in every run."""
    if case.kind == "own":
        cases.seed()
        found = (item.sample_input for item in info.error_inputs("cpu"))
        return [Sample((item.input, *item.args), dict(item.kwargs), _all_of_it) for item in found]
    changes = {"empty": _empty, "dtypes": _other_types, "indices": _far_indices}[case.kind]
    made: list[Sample] = []
    # What types an operator takes seldom depends on the sizes.
    for sample in _samples(info)[: 1 if case.kind == "dtypes" else 2]:
        made += changes(sample)
    return made[:MOST]


def _all_of_it(result: Any) -> Any:
    return result


def _samples(info: Any) -> list[Sample]:
    """Samples that are not empty, of the element type that is first for the operator."""
    supported = sorted(info.supported_dtypes("cpu"), key=str)
    if not supported:
        return []
    dtype = torch.float32 if torch.float32 in supported else supported[-1]
    name = str(dtype).removeprefix("torch.")
    found = cases.samples(info, OperatorCase(info.full_name, name, "forward"), 3)
    return [
        item
        for item in found
        if item.tensors() and all(t.numel() and _is_plain(t) for t in item.tensors())
    ]


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def _empty(sample: Sample) -> Iterator[Sample]:
    """Each size of the first tensor is 0, in it alone and wherever it occurs."""
    first = sample.tensors()[0]
    for dim, size in enumerate(first.shape):
        yield _changed(sample, lambda at, t, dim=dim: _cut(t, [dim]) if at == 0 else t)
        if any(size in other.shape for other in sample.tensors()[1:]):
            yield _changed(
                sample,
                lambda at, t, size=size: _cut(t, [d for d in range(t.dim()) if t.shape[d] == size]),
            )


def _cut(tensor: torch.Tensor, dims: list[int]) -> torch.Tensor:
    shape = [0 if dim in dims else size for dim, size in enumerate(tensor.shape)]
    return torch.zeros(shape, dtype=tensor.dtype)


def _other_types(sample: Sample) -> Iterator[Sample]:
    """One tensor, or all of them, in another element type."""
    tensors = sample.tensors()
    if len(tensors) > 1:
        for chosen in range(min(2, len(tensors))):
            integer = tensors[chosen].dtype in _INTEGERS
            for dtype in (torch.float32,) if integer else (torch.int64, torch.float64):
                yield _changed(
                    sample,
                    lambda at, t, chosen=chosen, dtype=dtype: t.to(dtype) if at == chosen else t,
                )
    for dtype in (torch.int64, torch.bool, torch.complex64, torch.float16):
        yield _changed(
            sample, lambda at, t, dtype=dtype: t if t.dtype in _INTEGERS and at else _cast(t, dtype)
        )


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.real.to(dtype) if tensor.is_complex() else tensor.to(dtype)


def _far_indices(sample: Sample) -> Iterator[Sample]:
    """The last number of each tensor of integers is too large, or too small."""
    tensors = sample.tensors()
    for chosen, tensor in enumerate(tensors):
        if tensor.dtype not in _INTEGERS:
            continue
        for value in (_FAR, -_FAR):
            yield _changed(
                sample,
                lambda at, t, chosen=chosen, value=value: _ending(t, value) if at == chosen else t,
            )


def _ending(tensor: torch.Tensor, value: int) -> torch.Tensor:
    changed = tensor.clone(memory_format=torch.contiguous_format)
    changed.view(-1)[-1] = value
    return changed


def _changed(sample: Sample, change: Callable[[int, torch.Tensor], torch.Tensor]) -> Sample:
    """The sample with each of its tensors, by its number, replaced."""
    leaves, structure = pytree.tree_flatten((sample.args, sample.kwargs))
    at = 0
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            leaves[place] = change(at, leaf.detach())
            at += 1
    args, kwargs = pytree.tree_unflatten(leaves, structure)
    return Sample(args, kwargs, sample.differentiated)
