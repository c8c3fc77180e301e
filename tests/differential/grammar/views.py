"""Views, and chains of them."""

from __future__ import annotations

from typing import Any

import torch

from tests.differential.draft import Draft, Unfit
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Code, Name, Operand, index


def _ranked(low: int, high: int = 5) -> Any:
    return lambda value: low <= value.dim() <= high


def bounds(draft: Draft, x: Name, dim: int) -> slice:
    """A slice of a dimension, seldom of all of it."""
    extent = draft.extent(x, dim)
    start: Operand = None
    stop: Operand = None
    step: Operand = None
    if draft.chance(0.7):
        start = draft.integer(0, max(extent, 1), x, dim)
        if draft.chance(0.15):
            start = -draft.rng.randint(1, 3)
    if draft.chance(0.5):
        stop = draft.integer(0, extent + 1, x, dim)
        if draft.chance(0.2):
            stop = -draft.rng.randint(1, 2)
    if draft.chance(0.25):
        step = draft.rng.choice([1, 2, 2, 3])
    return slice(start, stop, step)


def indexed(draft: Draft, x: Name, new_axes: bool = True) -> Operand:
    """What stands between the brackets of a basic index."""
    rank = draft.value(x.name).dim()
    items: list[Operand] = []
    for dim in range(rank):
        if draft.chance(0.25 / (dim + 1)) and dim < rank - 1:
            items.append(slice(None, None, None))
            continue
        if draft.chance(0.2) and draft.extent(x, dim) > 0:
            items.append(draft.integer(-1, draft.extent(x, dim) - 1, x, dim))
        else:
            items.append(bounds(draft, x, dim))
        if draft.chance(0.55):
            break
    if new_axes and draft.chance(0.08):
        items.insert(draft.rng.randint(0, len(items)), None)
    if draft.chance(0.12):
        items = [..., *items[:1]]
    return index(tuple(items or [...]))


@production("views", "slice", 5)
def _slice(draft: Draft) -> Made:
    x = draft.tensor(_ranked(1))
    return Made("{0}[{1}]", (x, indexed(draft, x)))


@production("views", "narrow")
def _narrow(draft: Draft) -> Made:
    x = draft.tensor(_ranked(1))
    dim = draft.dim(x, 1)
    extent = draft.extent(x, dim)
    start = draft.integer(0, extent - 1, x, dim)
    length = draft.integer(0, max(extent - (start if isinstance(start, int) else 1), 0), x, dim)
    return Made("{0}.narrow({1}, {2}, {3})", (x, dim, start, length))


@production("views", "select", 2)
def _select(draft: Draft) -> Made:
    x = draft.tensor(_ranked(1))
    dim = draft.dim(x, 1)
    at = draft.integer(-1, draft.extent(x, dim) - 1, x, dim)
    return Made("{0}.select({1}, {2})", (x, dim, at))


@production("views", "transpose", 2)
def _transpose(draft: Draft) -> Made:
    x = draft.tensor(_ranked(2))
    if draft.value(x.name).dim() == 2 and draft.chance(0.5):
        return Made("{0}.t()", (x,))
    return Made("{0}.transpose({1}, {2})", (x, draft.dim(x), draft.dim(x)))


@production("views", "permute")
def _permute(draft: Draft) -> Made:
    x = draft.tensor(_ranked(2))
    dims = list(range(draft.value(x.name).dim()))
    draft.rng.shuffle(dims)
    return Made("{0}.permute({1})", (x, tuple(dims)))


@production("views", "movedim", 0.5)
def _movedim(draft: Draft) -> Made:
    x = draft.tensor(_ranked(2))
    return Made("{0}.movedim({1}, {2})", (x, draft.dim(x), draft.dim(x)))


def new_shape(draft: Draft, x: Name) -> tuple[Operand, ...]:
    """A shape with as many elements."""
    shapes = [value.shape for value in draft.values(x.name)]
    rank = len(shapes[0])
    kind = draft.rng.choice(["flat", "pair", "split", "ones", "sizes"])
    if kind == "flat" or rank == 0:
        return (-1,) if draft.chance(0.7) else (1, -1)
    dim = draft.rng.randrange(rank)
    sizes: list[Operand] = [_size(draft, x, at) for at in range(rank)]
    if kind == "pair" and rank > 1:
        dim = draft.rng.randrange(rank - 1)
        return (*sizes[:dim], -1, *sizes[dim + 2 :])
    if kind == "split":
        factor = next(
            (item for item in (2, 3) if all(shape[dim] % item == 0 for shape in shapes)), 1
        )
        pair = (factor, -1) if draft.chance(0.5) else (-1, factor)
        return (*sizes[:dim], *pair, *sizes[dim + 1 :])
    if kind == "ones":
        sizes.insert(dim, 1)
    return tuple(sizes)


def _size(draft: Draft, x: Name, dim: int) -> Operand:
    found = set(draft.sizes(x, dim))
    if len(found) == 1 and draft.chance(0.7):
        return found.pop()
    return Code(f"{{0}}.shape[{dim}]", (x,))


@production("views", "view", 2)
def _view(draft: Draft) -> Made:
    x = draft.tensor()
    return Made("{0}.view({1})", (x, new_shape(draft, x)))


@production("views", "reshape", 2)
def _reshape(draft: Draft) -> Made:
    x = draft.tensor()
    return Made("{0}.reshape({1})", (x, new_shape(draft, x)))


@production("views", "flatten")
def _flatten(draft: Draft) -> Made:
    x = draft.tensor()
    if draft.chance(0.5):
        return Made("{0}.flatten()", (x,))
    return Made("{0}.flatten({1})", (x, draft.dim(x)))


@production("views", "unflatten", 0.5)
def _unflatten(draft: Draft) -> Made:
    x = draft.tensor(_ranked(1))
    dim = draft.dim(x)
    return Made("{0}.unflatten({1}, {2})", (x, dim, draft.rng.choice([(1, -1), (-1, 1), (-1, 2)])))


@production("views", "unsqueeze")
def _unsqueeze(draft: Draft) -> Made:
    x = draft.tensor()
    rank = draft.value(x.name).dim()
    return Made("{0}.unsqueeze({1})", (x, draft.rng.randint(-rank - 1, rank)))


@production("views", "squeeze")
def _squeeze(draft: Draft) -> Made:
    x = draft.tensor()
    # Without a dimension the rank would depend on sizes.
    dim = draft.dim(x)
    sizes = {size == 1 for size in draft.sizes(x, dim)}
    if len(sizes) > 1:
        raise Unfit
    return Made("{0}.squeeze({1})", (x, dim))


@production("views", "expand", 1.5)
def _expand(draft: Draft) -> Made:
    x = draft.tensor()
    shapes = [value.shape for value in draft.values(x.name)]
    sizes: list[Operand] = []
    for dim in range(len(shapes[0])):
        if all(shape[dim] == 1 for shape in shapes) and draft.chance(0.8):
            sizes.append(draft.integer(0, 4))
        else:
            sizes.append(-1)
    if draft.chance(0.5) or -1 in sizes[:1]:
        sizes.insert(0, draft.integer(0, 3))
    return Made("{0}.expand({1})", (x, tuple(sizes)))


@production("views", "expand_as", 0.5)
def _expand_as(draft: Draft) -> Made:
    x = draft.tensor()
    return Made("{1}.expand_as({0})", (x, draft.beside(x)))


@production("views", "as_strided")
def _as_strided(draft: Draft) -> Made:
    # Torch promises other strides than eager mode gives for some sums of transposed tensors.
    x = draft.tensor(lambda value: value.is_contiguous())
    count = min(
        value.untyped_storage().nbytes() // value.element_size() for value in draft.values(x.name)
    )
    if count < 1:
        raise Unfit
    offset = draft.rng.randint(0, min(2, count - 1))
    left = count - offset
    choice = draft.rng.random()
    if choice < 0.4:
        step = draft.rng.choice([1, 1, 2, 0])
        shape: tuple[Operand, ...] = (max(1, (left - 1) // max(step, 1)),)
        strides: tuple[int, ...] = (step,)
    else:
        rows = draft.rng.randint(1, 3)
        columns = max(1, min(3, left // rows))
        shape = (rows, columns)
        strides = draft.rng.choice([(columns, 1), (1, rows), (1, 1), (0, 1)])
        if strides == (1, 1) and rows + columns - 1 > left:
            raise Unfit
    if draft.chance(0.3):
        return Made("{0}.as_strided({1}, {2})", (x, shape, strides))
    return Made("{0}.as_strided({1}, {2}, {3})", (x, shape, strides, offset))


@production("views", "unfold")
def _unfold(draft: Draft) -> Made:
    x = draft.tensor(_ranked(1, 4))
    dim = draft.dim(x, 1)
    size = draft.integer(1, min(draft.extent(x, dim), 3))
    return Made("{0}.unfold({1}, {2}, {3})", (x, dim, size, draft.rng.randint(1, 2)))


@production("views", "diagonal")
def _diagonal(draft: Draft) -> Made:
    x = draft.tensor(_ranked(2))
    if draft.chance(0.4):
        return Made("{0}.diagonal()", (x,))
    rank = draft.value(x.name).dim()
    first, second = draft.rng.sample(range(rank), 2)
    return Made("{0}.diagonal({1}, {2}, {3})", (x, draft.rng.randint(-1, 1), first, second))


@production("views", "split", 1.5)
def _split(draft: Draft) -> Made:
    x = draft.tensor(_ranked(1))
    dim = draft.dim(x, 1)
    size = draft.integer(1, max(2, draft.extent(x, dim)), x, dim)
    at = draft.rng.choice([0, -1])
    if draft.chance(0.4):
        return Made("{0}.split({1}, {2})", (x, size, dim))
    return Made("{0}.split({1}, {2})[{3}]", (x, size, dim, at))


@production("views", "chunk")
def _chunk(draft: Draft) -> Made:
    x = draft.tensor(_ranked(1))
    dim = draft.dim(x, 1)
    if draft.chance(0.4):
        return Made("{0}.chunk({1}, {2})", (x, draft.rng.randint(1, 3), dim))
    return Made("{0}.chunk({1}, {2})[{3}]", (x, draft.rng.randint(1, 3), dim, 0))


@production("views", "unbind")
def _unbind(draft: Draft) -> Made:
    x = draft.tensor(_ranked(1))
    dim = draft.dim(x, 1)
    if draft.chance(0.5):
        return Made("{0}.unbind({1})", (x, dim))
    return Made("{0}.unbind({1})[{2}]", (x, dim, draft.rng.choice([0, -1])))


@production("views", "tensor_split")
def _tensor_split(draft: Draft) -> Made:
    x = draft.tensor(_ranked(1))
    dim = draft.dim(x)
    how: Operand = draft.rng.randint(1, 3)
    if draft.chance(0.5):
        how = (1, draft.integer(1, 3))
    if draft.chance(0.5):
        return Made("{0}.tensor_split({1}, {2})", (x, how, dim))
    return Made("{0}.tensor_split({1}, {2})[{3}]", (x, how, dim, -1))


@production("views", "item_of_list", 2)
def _item(draft: Draft) -> Made:
    lists = [
        name
        for name in draft.visible
        if all(isinstance(value, (tuple, list)) and value for value in draft.values(name))
    ]
    return Made("{0}[{1}]", (Name(draft.pick(lists)), draft.rng.choice([0, -1])))


@production("views", "real", 1.5)
def _real(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dtype.is_complex)
    name = draft.rng.choice(["real", "imag", "view_as_real", "conj"])
    text = {"view_as_real": "torch.view_as_real({0})", "conj": "{0}.conj()"}.get(
        name, f"{{0}}.{name}"
    )
    return Made(text, (x,), features=(f"views.{name}",))


@production("views", "view_as_complex")
def _view_as_complex(draft: Draft) -> Made:
    x = draft.tensor(
        lambda value: (
            value.dtype in (torch.float32, torch.float64)
            and value.dim() > 0
            and value.shape[-1] == 2
        )
    )
    return Made("torch.view_as_complex({0})", (x,))


@production("views", "view_dtype")
def _view_dtype(draft: Draft) -> Made:
    x = draft.exact(lambda value: not value.dtype.is_complex and value.dtype is not torch.bool)
    pairs = {
        torch.float32: (torch.int32, torch.int16),
        torch.int32: (torch.int8, torch.int16),
        torch.int64: (torch.int32, torch.uint8),
        torch.float64: (torch.int64,),
        torch.float16: (torch.int16,),
        torch.bfloat16: (torch.int16, torch.int8),
        torch.int8: (torch.uint8,),
        torch.uint8: (torch.int8,),
        torch.int16: (torch.int8, torch.uint8),
    }
    return Made("{0}.view({1})", (x, draft.rng.choice(pairs[draft.value(x.name).dtype])))


@production("views", "detach", 0.7)
def _detach(draft: Draft) -> Made:
    return Made(draft.rng.choice(["{0}.detach()", "{0}.data"]), (draft.tensor(),))


@production("views", "view_as", 0.4)
def _view_as(draft: Draft) -> Made:
    x = draft.tensor()
    return Made("{0}.view_as({1})", (x, draft.like(x)))


@production("views", "contiguous", 0.7)
def _contiguous(draft: Draft) -> Made:
    return Made("{0}.contiguous()", (draft.tensor(),))


@production("views", "alias", 0.4)
def _alias(draft: Draft) -> Made:
    how = draft.rng.choice(["{0}[:]", "{0}.view_as({0})", "{0}"])
    return Made(how, (draft.tensor(_ranked(1)),))
