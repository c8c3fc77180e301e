"""Joining, repeating, sorting, products of matrices, and tensors that are made anew."""

from __future__ import annotations

import torch

from tests.differential.draft import (
    FLOATS,
    HALF,
    INTEGERS,
    Draft,
    Unfit,
    is_float,
    is_real,
)
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Code, Name, Operand


@production("joining", "cat", 3)
def _cat(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    y = draft.like(x)
    if draft.chance(0.2):
        return Made("torch.cat([{0}, {1}, {0}], {2})", (x, y, draft.dim(x)))
    return Made("torch.cat([{0}, {1}], {2})", (x, y, draft.dim(x)))


@production("joining", "stack", 1.5)
def _stack(draft: Draft) -> Made:
    x = draft.tensor()
    rank = draft.value(x.name).dim()
    return Made("torch.stack([{0}, {1}], {2})", (x, draft.like(x), draft.rng.randint(-1, rank)))


@production("joining", "repeat")
def _repeat(draft: Draft) -> Made:
    x = draft.tensor()
    rank = draft.value(x.name).dim()
    if draft.chance(0.3):
        return Made("{0}.repeat_interleave({1})", (x, draft.integer(0, 3)))
    times: tuple[Operand, ...] = tuple(draft.integer(0, 2) for _ in range(max(rank, 1)))
    return Made(draft.rng.choice(["{0}.repeat({1})", "torch.tile({0}, {1})"]), (x, times))


@production("joining", "flip", 1)
def _flip(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    if draft.chance(0.4):
        return Made("{0}.roll({1}, {2})", (x, draft.integer(-2, 3), draft.dim(x)))
    return Made("{0}.flip({1})", (x, draft.dim(x)))


@production("joining", "triangle", 0.7)
def _triangle(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() >= 2)
    name = draft.rng.choice(["tril", "triu"])
    return Made(f"{{0}}.{name}({{1}})", (x, draft.rng.randint(-1, 1)))


@production("joining", "pad", 0.7)
def _pad(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    padding = (draft.rng.randint(-1, 2), draft.rng.randint(0, 2))
    return Made("torch.nn.functional.pad({0}, {1})", (x, padding))


@production("sorting", "sort", 2)
def _sort(draft: Draft) -> Made:
    x = draft.exact(lambda value: value.dim() > 0 and not value.dtype.is_complex)
    down = draft.chance(0.4)
    at = draft.rng.choice([0, 1])
    text = f"torch.sort({{0}}, dim={{1}}, descending={{2}}, stable=True)[{at}]"
    return Made(text, (x, draft.dim(x), down))


@production("sorting", "argsort")
def _argsort(draft: Draft) -> Made:
    x = draft.exact(lambda value: value.dim() > 0 and is_real(value))
    return Made("{0}.argsort({1}, stable=True)", (x, draft.dim(x)))


@production("sorting", "topk")
def _topk(draft: Draft) -> Made:
    x = draft.exact(lambda value: value.dim() > 0 and is_real(value))
    dim = draft.dim(x, 1)
    count = draft.integer(1, draft.extent(x, dim), x, dim)
    return Made("{0}.topk({1}, {2})[0]", (x, count, dim))


@production("sorting", "kthvalue", 0.4)
def _kthvalue(draft: Draft) -> Made:
    x = draft.exact(lambda value: value.dim() > 0 and is_float(value))
    dim = draft.dim(x, 1)
    return Made("{0}.kthvalue({1}, {2})[0]", (x, draft.integer(1, draft.extent(x, dim)), dim))


@production("sorting", "searchsorted", 0.4)
def _searchsorted(draft: Draft) -> Made:
    x = draft.exact(lambda value: value.dim() == 1 and is_real(value))
    y = draft.exact(lambda value: is_real(value))
    return Made("torch.searchsorted({0}.sort()[0], {1}.contiguous())", (x, y))


@production("sorting", "unique", 0.4)
def _unique(draft: Draft) -> Made:
    x = draft.exact(lambda value: not value.dtype.is_complex)
    return Made("torch.unique({0})", (x,), features=("indexing.size_of_data",))


@production("matrices", "matmul", 3)
def _matmul(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() >= 1)
    dtype = draft.value(x.name).dtype
    y = draft.tensor(lambda value: value.dtype == dtype and value.dim() >= 1)
    how = draft.rng.choice(["{0} @ {1}", "{0} @ {1}.mT", "{0}.mT @ {1}"])
    return Made(how, (x, y), rough=dtype in HALF)


@production("matrices", "bmm")
def _bmm(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() == 3)
    dtype = draft.value(x.name).dtype
    y = draft.tensor(lambda value: value.dtype == dtype and value.dim() == 3)
    return Made("torch.bmm({0}, {1}.mT)", (x, y), rough=True)


@production("matrices", "linear")
def _linear(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() >= 1 and is_float(value))
    dtype = draft.value(x.name).dtype
    w = draft.tensor(lambda value: value.dtype == dtype and value.dim() == 2)
    return Made("torch.nn.functional.linear({0}, {1})", (x, w), rough=True)


@production("matrices", "convolution", 0.7)
def _convolution(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() == 3 and is_float(value))
    dtype = draft.value(x.name).dtype
    w = draft.tensor(lambda value: value.dtype == dtype and value.dim() == 3)
    how = "torch.nn.functional.conv1d({0}, {1}.transpose(0, 1)[:, :{0}.shape[1]], padding=1)"
    if draft.chance(0.4):
        how = "torch.nn.functional.conv1d({0}, {1}, padding=2, stride=2)"
    return Made(how, (x, w), rough=True)


@production("matrices", "convolution_2d", 0.5)
def _convolution_2d(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() == 3 and is_float(value))
    how = "torch.nn.functional.conv2d({0}[None], {0}[:, None, :2, :2], groups={0}.shape[0])"
    return Made(how, (x,), rough=True)


@production("matrices", "layer_norm", 0.7)
def _layer_norm(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() >= 1 and is_float(value))
    return Made("torch.nn.functional.layer_norm({0}, {0}.shape[-1:])", (x,), rough=True)


@production("matrices", "outer", 0.5)
def _outer(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() == 1)
    y = draft.tensor(lambda value: value.dim() == 1)
    return Made("torch.outer({0}, {1})", (x, y), rough=True)


def _shape(draft: Draft, x: Name) -> tuple[Operand, ...]:
    rank = draft.value(x.name).dim()
    if rank == 0:
        return ()
    sizes: list[Operand] = [Code(f"{{0}}.shape[{at}]", (x,)) for at in range(rank)]
    if draft.chance(0.3):
        sizes = sizes[:1]
    if draft.chance(0.3):
        sizes[-1] = draft.integer(0, 4)
    return tuple(sizes)


@production("creation", "filled", 2)
def _filled(draft: Draft) -> Made:
    x = draft.tensor()
    dtype = draft.rng.choice([*FLOATS, *INTEGERS, torch.bool])
    name = draft.rng.choice(["zeros", "ones"])
    return Made(f"torch.{name}({{0}}, dtype={{1}})", (_shape(draft, x), dtype))


@production("creation", "like", 1.5)
def _like(draft: Draft) -> Made:
    x = draft.tensor()
    how = draft.rng.choice(
        ["torch.zeros_like({0})", "torch.ones_like({0})", "{0}.new_zeros({1})",
         "torch.full_like({0}, {2})", "{0}.new_full({1}, {2})", "torch.empty_like({0}).fill_({2})"]
    )  # fmt: skip
    return Made(how, (x, _shape(draft, x), draft.number(draft.value(x.name).dtype)))


@production("creation", "empty_strided", 0.7)
def _empty_strided(draft: Draft) -> Made:
    rows, columns = draft.rng.randint(1, 3), draft.rng.randint(1, 3)
    strides = draft.rng.choice([(columns + 1, 1), (1, rows), (2 * columns, 2), (columns, 1)])
    text = "torch.empty_strided({0}, {1}).fill_({2})"
    return Made(text, ((rows, columns), strides, draft.rng.choice([1.0, 0.5, -2.0])))


@production("creation", "arange", 1.5)
def _arange(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    how = draft.rng.choice(
        ["torch.arange({0}.shape[0], dtype=torch.float32)", "torch.arange({1})",
         "torch.arange(0, {0}.numel(), 2)", "torch.full(({0}.shape[0], 2), {1})",
         "torch.eye({0}.shape[0])", "torch.linspace(0, 1, {0}.shape[0])"]
    )  # fmt: skip
    return Made(how, (x, draft.integer(0, 4)), rough="linspace" in how)


@production("creation", "tensor_of_number", 0.8)
def _tensor_of_number(draft: Draft) -> Made:
    names = [name for name in draft.parameters if name in draft.columns]
    if not names:
        raise Unfit
    return Made("torch.tensor({0})", (Name(draft.pick(names)),))
