"""Indexing with tensors, gathering and scattering."""

from __future__ import annotations

import torch

from tests.differential.draft import HALF, Draft, Unfit, is_number
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Code, Name, Operand


def _positions(draft: Draft, extent: int, low: int = 0) -> Name:
    """A tensor of places below a size."""

    def fits(value: torch.Tensor) -> bool:
        if value.dtype is not torch.int64 or value.dim() != 1:
            return False
        return value.numel() == 0 or (low <= int(value.min()) and int(value.max()) < extent)

    return draft.exact(fits)


def _literal(draft: Draft, extent: int, count: int | None = None) -> Code:
    """Places as a constant tensor."""
    if extent < 1:
        raise Unfit
    count = draft.rng.randint(1, 4) if count is None else count
    return Code("torch.tensor({0})", ([draft.rng.randrange(extent) for _ in range(count)],))


def _places(draft: Draft, x: Name, dim: int) -> Operand:
    extent = draft.extent(x, dim)
    if draft.chance(0.6):
        try:
            return _positions(draft, extent)
        except Unfit:
            pass
    return _literal(draft, extent)


@production("indexing", "positions", 2)
def _make(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0 and value.shape[0] > 0)
    return Made(
        "torch.arange({0}.shape[0] - 1, -1, -1)"
        if draft.chance(0.4)
        else "torch.arange({0}.shape[0])",
        (x,),
    )


@production("indexing", "index", 2)
def _index(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    rank = draft.value(x.name).dim()
    dim = draft.rng.randrange(min(rank, 2))
    at = _places(draft, x, dim)
    if dim == 1:
        return Made("{0}[:, {1}]", (x, at))
    if rank > 1 and draft.chance(0.3):
        return Made("{0}[{1}, {2}]", (x, at, draft.integer(0, draft.extent(x, 1) - 1, x, 1)))
    if rank > 1 and draft.chance(0.2):
        return Made("{0}[{1}, ..., {2}:]", (x, at, draft.integer(0, 2)))
    return Made("{0}[{1}]", (x, at))


@production("indexing", "mask")
def _mask(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    condition = draft.like(x, lambda value: value.dtype is torch.bool)
    return Made("{0}[{1}]", (x, condition), features=("indexing.size_of_data",))


@production("indexing", "nonzero", 0.5)
def _nonzero(draft: Draft) -> Made:
    how = draft.rng.choice(["{0}.nonzero()", "torch.where({0})", "torch.argwhere({0})"])
    return Made(how, (draft.exact(),), features=("indexing.size_of_data",))


@production("indexing", "index_select")
def _index_select(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    dim = draft.dim(x)
    return Made("{0}.index_select({1}, {2})", (x, dim, _places(draft, x, dim)))


@production("indexing", "gather", 1.5)
def _gather(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    dim = draft.dim(x)
    extent = draft.extent(x, dim)
    if extent < 1:
        raise Unfit
    how = draft.rng.choice(["gather({1}, {2})", "take_along_dim({2}, {1})"])
    places = Code(
        "({0}.argsort({1}, stable=True) % {2})", (draft.exact(_alike(draft, x)), dim, extent)
    )
    return Made(f"{{0}}.{how}", (x, dim, places))


def _alike(draft: Draft, x: Name):  # type: ignore[no-untyped-def]
    shapes = {tuple(value.shape) for value in draft.values(x.name)}

    def fits(value: torch.Tensor) -> bool:
        return tuple(value.shape) in shapes and not value.dtype.is_complex

    return fits


@production("indexing", "take", 0.4)
def _take(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.numel() > 3)
    return Made("{0}.take({1})", (x, _literal(draft, 3)))


@production("indexing", "scatter", 1.5)
def _scatter(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    dim = draft.dim(x)
    places = Code("{0}.argsort({1}, stable=True)", (draft.exact(_alike(draft, x)), dim))
    dtype = draft.value(x.name).dtype
    name = draft.rng.choice(["scatter", "scatter_", "scatter_add", "scatter_add_"])
    rough = dtype in HALF
    if draft.chance(0.4) and "add" not in name:
        return Made(
            f"{{0}}.{name}({{1}}, {{2}}, {{3}})", (x, dim, places, draft.number(dtype)), rough=rough
        )
    y = draft.like(x, lambda value: value.dtype == dtype)
    return Made(f"{{0}}.{name}({{1}}, {{2}}, {{3}})", (x, dim, places, y), rough=rough)


@production("indexing", "index_add")
def _index_add(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0 and is_number(value))
    dim = draft.dim(x)
    dtype = draft.value(x.name).dtype
    y = draft.like(x, lambda value: value.dtype == dtype)
    extents = set(draft.sizes(x, dim))
    if 0 in extents:
        raise Unfit
    name = draft.rng.choice(["index_add", "index_add_", "index_copy", "index_copy_"])
    places: Operand = Code(f"torch.arange({{0}}.shape[{dim}]).flip(0)", (x,))
    if "add" in name:
        places = Code(f"(torch.arange({{0}}.shape[{dim}]) // 2)", (x,))
    return Made(f"{{0}}.{name}({{1}}, {{2}}, {{3}})", (x, dim, places, y), rough=dtype in HALF)


@production("indexing", "index_fill", 0.5)
def _index_fill(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    dim = draft.dim(x)
    name = draft.rng.choice(["index_fill", "index_fill_"])
    number = draft.number(draft.value(x.name).dtype)
    return Made(f"{{0}}.{name}({{1}}, {{2}}, {{3}})", (x, dim, _places(draft, x, dim), number))


@production("indexing", "embedding", 0.5)
def _embedding(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() == 2 and value.dtype.is_floating_point)
    at = _places(draft, x, 0)
    return Made("torch.nn.functional.embedding({1}, {0})", (x, at))


@production("indexing", "scatter_functions", 0.7)
def _scatter_functions(draft: Draft) -> Made:
    # Of a view eager gives the copy the view's offset, which no fake tensor promises: {0}.clone().
    x = draft.tensor(lambda value: value.dim() > 0)
    dim = draft.dim(x, 1)
    number = draft.number(draft.value(x.name).dtype)
    if draft.chance(0.5):
        text = "torch.select_scatter({0}.clone(), {0}.select({1}, 0) * {2}, {1}, 0)"
        return Made(text, (x, dim, number), rough=draft.value(x.name).dtype in HALF)
    text = "torch.slice_scatter({0}.clone(), {0}.narrow({1}, 0, 1) * {2}, {1}, 0, 1)"
    return Made(text, (x, dim, number), rough=draft.value(x.name).dtype in HALF)


@production("indexing", "masked_scatter", 0.6)
def _masked_scatter(draft: Draft) -> Made:
    x = draft.tensor()
    mask = draft.beside(x, lambda value: value.dtype is torch.bool)
    dtype = draft.value(x.name).dtype
    source = draft.tensor(lambda value: value.dtype == dtype)
    return Made("{0}.masked_scatter({1}, {2})", (x, mask, source))
