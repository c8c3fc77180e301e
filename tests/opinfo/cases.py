"""The cases: operators of torch's own database, in element types and directions, with samples."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.common_device_type import toleranceOverride
from torch.utils import _pytree as pytree

from tests.comparing import EXACT, Tolerance
from tests.opinfo import large
from tests.opinfo.case import Case
from tests.opinfo.large import Call

TYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.bool,
)
"""The element types of the sweep."""

TOLERANCES = {
    torch.float64: Tolerance(1e-11, 1e-13),
    torch.complex128: Tolerance(1e-11, 1e-13),
    torch.float32: Tolerance(5e-6, 1e-6),
    torch.complex64: Tolerance(5e-6, 1e-6),
}
"""By how much results may differ from eager's; of smaller types by two units of the last place."""

WIDEST = 1e-3
"""Where an entry itself asks for a larger tolerance it gets it, up to this part."""

SAMPLES = 3
"""Of a case, at most."""

LOOKED_AT = 60
"""Samples of which these are chosen, those that differ most."""

ELEMENTS = 1 << 16
"""Of all tensors of a sample; larger ones are passed over where there are others."""

_WIDE_LOOKED_AT = 400
_WIDE_ELEMENTS = 1 << 13


@dataclass(frozen=True)
class Sample:
    """The arguments of one call, and what of its result is differentiated."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    differentiated: Callable[[Any], Any]

    def fresh(self) -> Sample:
        """The same values in memory of their own, with the same strides, sharing and flags."""
        copy = _Copy()
        args, kwargs = pytree.tree_map_only(torch.Tensor, copy, (self.args, self.kwargs))
        return Sample(args, kwargs, self.differentiated)

    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the arguments."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


class _Copy:
    """Copies tensors; those that shared memory share it again."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        source = tensor.detach()
        if source.layout is not torch.strided:
            return source.clone().requires_grad_(tensor.requires_grad)
        old = source.untyped_storage()
        new = self._storages.get(old._cdata)
        if new is None:
            new = self._storages[old._cdata] = old.clone()
        copy = torch.empty(0, dtype=source.dtype)
        copy.set_(new, source.storage_offset(), source.size(), source.stride())
        if source.is_conj():
            copy = copy.conj()
        if source.is_neg():
            copy = torch._neg_view(copy)
        return copy.requires_grad_(tensor.requires_grad)


def prepare() -> None:
    """Make the database's operators plain calls.

    Random operators there seed the generator themselves, which Dynamo cannot trace; here that is
    done around the call.
    """
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


def seed(value: int = 0) -> None:
    """Seed every generator that samples or operators draw from."""
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)


def all_cases(wide: bool) -> Iterator[Case]:
    """Every case, in the order of the database.

    `TYPES` where an operator supports them, and the first that it supports where it does not
    support float32; float32 and the types that stand in for it also backward and in place. In a
    wide sweep every type that it supports, in every direction.
    """
    for info in _database(wide):
        supported = sorted(info.supported_dtypes("cpu"), key=str)
        chosen = supported if wide else [dtype for dtype in supported if dtype in TYPES]
        leading = {torch.float32}
        if torch.float32 not in supported:
            leading = {torch.int64, torch.bool, *supported[:1]}
            chosen = sorted({*chosen, *supported[:1]}, key=str)
        for dtype in chosen:
            name = str(dtype).removeprefix("torch.")
            yield Case(info.full_name, name, "forward")
            if info.inplace_variant and (wide or dtype is torch.float32):
                yield Case(info.full_name, name, "inplace")
            differentiable = dtype in info.supported_backward_dtypes("cpu")
            if info.supports_autograd and differentiable and (wide or dtype in leading):
                yield Case(info.full_name, name, "backward")


def entries() -> dict[str, Any]:
    """The database by name, with operators on lists of tensors."""
    return {info.full_name: info for info in _database(wide=True)}


def _database(wide: bool) -> list[Any]:
    lists = (
        database.foreach_unary_op_db,
        database.foreach_binary_op_db,
        database.foreach_pointwise_op_db,
        database.foreach_reduce_op_db,
        database.foreach_other_op_db,
    )
    return [*database.op_db, *(info for infos in lists for info in infos if wide)]


def samples(info: Any, case: Case, count: int) -> list[Sample]:
    """Samples of a case that differ in shapes and keywords, and a large one where that differs.

    The same in every run.
    """
    candidates = list(islice(_generated(info, case, info.sample_inputs), LOOKED_AT))
    small = [item for item in candidates if _elements(item) <= ELEMENTS]
    return [*_distinct(small or candidates[:1], count), *_large(case)]


def _large(case: Case) -> Iterator[Sample]:
    """What is a call of a kernel of PyTorch, where there is one."""
    found, dtype = large.ENTRIES.get(case.entry), getattr(torch, case.dtype)
    if found is not None and dtype in found.types and case.direction == "forward":
        seed()
        args, kwargs = found.above(dtype)
        yield Sample(args, kwargs, lambda result: result)


def wide_samples(info: Any, case: Case, count: int) -> list[Sample]:
    """All samples and reference inputs that are not large; of more than `count` these that differ.

    The same in every run.
    """
    candidates = list(islice(_generated(info, case, info.sample_inputs), _WIDE_LOOKED_AT))
    if getattr(info, "reference_inputs_func", None) is not None and case.direction == "forward":
        found = _generated(info, case, info.reference_inputs)
        candidates += islice(found, _WIDE_LOOKED_AT)
    small = [item for item in candidates if _elements(item) <= _WIDE_ELEMENTS]
    if len(small) <= count:
        return small or candidates[:1]
    chosen = _distinct(small, count)
    step = max(1, len(small) // (count - len(chosen) + 1))
    spread = [item for item in small[::step] if not any(item is other for other in chosen)]
    return chosen + spread[: count - len(chosen)]


def _generated(info: Any, case: Case, generator: Callable[..., Any]) -> Iterator[Sample]:
    seed()
    # Lists of tensors are as long as twenty, which shows nothing that four do not.
    shorter = {"num_input_tensors": [4]} if case.entry.startswith("_foreach") else {}
    dtype, differentiated = getattr(torch, case.dtype), case.direction == "backward"
    for item in generator("cpu", dtype, requires_grad=differentiated, **shorter):
        kwargs = dict(item.kwargs)
        # Says of a test of torch's which kernel it expects.
        kwargs.pop("disable_fastpath", None)
        yield Sample((item.input, *item.args), kwargs, item.output_process_fn_grad)


def _elements(sample: Sample) -> int:
    return sum(tensor.numel() for tensor in sample.tensors())


def _distinct(candidates: list[Sample], count: int) -> list[Sample]:
    """The first sample that is not empty, then those that bring most that is new."""
    features = [_features(item) for item in candidates]
    chosen: list[int] = []
    seen: set[Any] = set()
    while len(chosen) < count:
        gains = {at: len(features[at] - seen) for at in range(len(candidates)) if at not in chosen}
        if not chosen:
            gains = {at: 1 for at in gains if _elements(candidates[at])} or gains
        if not any(gains.values()):
            break
        best = max(gains, key=lambda at: (gains[at], -at))
        chosen.append(best)
        seen |= features[best]
    return [candidates[at] for at in sorted(chosen)]


def _features(sample: Sample) -> frozenset[Any]:
    found: set[Any] = set()
    for path, leaf in pytree.tree_flatten_with_path((sample.args, sample.kwargs))[0]:
        at = pytree.keystr(path)
        if isinstance(leaf, torch.Tensor):
            dense = leaf.layout is torch.strided and leaf.is_contiguous()
            found |= {(at, tuple(leaf.shape)), (at, leaf.dim(), leaf.layout, dense)}
        else:
            found.add((at, repr(leaf)))
    return frozenset(found)


def tolerance(info: Any, dtype: torch.dtype) -> Tolerance:
    """By how much results may differ from eager's: more where the entry itself asks for it."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return EXACT
    eps = torch.finfo(dtype).eps
    found = Tolerance(2 * eps, eps) if torch.finfo(dtype).bits < 32 else TOLERANCES[dtype]
    for override in _overrides(info.decorators or ()):
        given = override.d.get(dtype)
        if given is not None and not math.isinf(given.atol):
            limited = (min(part, WIDEST) for part in _parts(given))
            found = Tolerance(*map(max, found, limited))
    return found


def strict_tolerance(info: Any, dtype: torch.dtype) -> Tolerance:
    """As torch's own tests have it: of `assert_close`, or of the entry."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return EXACT
    found = Tolerance(*default_tolerances(dtype))
    for override in _overrides(info.decorators or ()):
        given = override.d.get(dtype)
        if given is not None and not math.isinf(given.atol):
            found = Tolerance(*map(max, found, _parts(given)))
    return found


def _parts(given: Any) -> Tolerance:
    """Torch's absolute tolerance is taken for a part of the largest element."""
    return Tolerance(given.rtol, given.atol)


def _overrides(decorators: Iterable[Any]) -> Iterator[Any]:
    for decorator in decorators:
        if isinstance(decorator, toleranceOverride):
            yield decorator
        yield from _overrides(getattr(decorator, "decorators", None) or ())


def function(info: Any, case: Case) -> Callable[[list[Call]], list[Any]]:
    """The operator on a list of arguments, as one function that Dynamo can trace."""
    op = info.inplace_variant if case.direction == "inplace" else info.op

    def run(calls: list[Call]) -> list[Any]:
        return [op(*args, **kwargs) for args, kwargs in calls]

    return run
