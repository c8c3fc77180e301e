"""Writing in place: whole tensors, parts of them, arguments and views of them."""

from __future__ import annotations

import torch

from tests.differential.draft import HALF, INTEGERS, Draft, Unfit, is_float, is_number, is_real
from tests.differential.grammar.elementwise import halved
from tests.differential.grammar.registry import Made, production
from tests.differential.grammar.views import indexed
from tests.differential.ir import Code, Name, Operand, fill, index


def _guard(draft: Draft, x: Name) -> Operand:
    """Sometimes a condition on a number or a size."""
    if not draft.chance(0.08):
        return None
    options = [Code("{0} > 1", (Name(name),)) for name in draft.integers()]
    if draft.value(x.name).dim():
        options.append(Code("{0}.shape[0] > 2", (x,)))
    return draft.rng.choice(options) if options else None


def _effect(draft: Draft, text: str, operands: tuple[Operand, ...], rough: bool = False) -> Made:
    guard = _guard(draft, operands[0])
    if guard is not None:
        at = f"{{{len(operands)}}}"
        operands = (*operands, guard)
        return Made(text, operands, "", rough=rough, guard=at, features=("control.if",))
    if draft.chance(0.25) and not text.startswith("{0}["):
        return Made(text, operands, rough=rough, features=("mutation.value_used",))
    return Made(text, operands, "", rough=rough)


@production("mutation", "add_", 4)
def _add_(draft: Draft) -> Made:
    x = draft.target(is_number)
    y: Operand = draft.number(draft.value(x.name).dtype)
    if draft.chance(0.5):
        y = draft.beside(x)
    how = draft.rng.choice(["{0}.add_({1})", "{0}.mul_({1})", "{0}.sub_({1})"])
    return _effect(draft, how, (x, y), halved(draft, x, y))


@production("mutation", "unary_", 2)
def _unary_(draft: Draft) -> Made:
    x = draft.target(is_real)
    how = draft.rng.choice(["{0}.neg_()", "{0}.abs_()", "{0}.relu_()", "{0}.clamp_(0, 2)"])
    return _effect(draft, how, (x,))


@production("mutation", "rough_", 0.7)
def _rough_(draft: Draft) -> Made:
    x = draft.target(is_float)
    how = draft.rng.choice(["{0}.tanh_()", "{0}.sigmoid_()", "{0}.sin_()", "{0}.div_(3)"])
    return _effect(draft, how, (x,), True)


@production("mutation", "fill_", 2)
def _fill_(draft: Draft) -> Made:
    x = draft.target()
    if draft.chance(0.4):
        return _effect(draft, "{0}.zero_()", (x,))
    return _effect(draft, "{0}.fill_({1})", (x, draft.number(draft.value(x.name).dtype)))


@production("mutation", "copy_", 2)
def _copy_(draft: Draft) -> Made:
    x = draft.target()
    y = draft.beside(x, lambda value: not value.dtype.is_complex)
    _convertible(draft, y.name, draft.value(x.name).dtype)
    return _effect(draft, "{0}.copy_({1})", (x, y), draft.value(x.name).dtype in HALF)


def _convertible(draft: Draft, name: str, dtype: torch.dtype) -> None:
    """Numbers that a type cannot hold give anything."""
    if dtype not in INTEGERS and dtype is not torch.bool:
        return
    for value in draft.values(name):
        if value.dtype.is_complex or (value.dtype.is_floating_point and draft.is_rough(name)):
            raise Unfit
        if value.dtype.is_floating_point and dtype is not torch.bool:
            inside = (value >= torch.iinfo(dtype).min) & (value <= torch.iinfo(dtype).max)
            if not bool(inside.all()):
                raise Unfit


def _assigned(draft: Draft, at: Operand, x: Operand) -> Operand:
    if draft.chance(0.5):
        return draft.number(draft.value(x.name).dtype)
    part = [_part(environment, x, at) for environment in draft.environments]
    found = []
    for name in draft.tensors(lambda value: not value.dtype.is_complex):
        shapes = [value.shape for value in draft.values(name)]
        try:
            if all(
                torch.broadcast_shapes(one, two.shape) == two.shape
                for one, two in zip(shapes, part, strict=True)
            ):
                found.append(name)
        except RuntimeError:
            continue
    name = draft.pick(found)
    _convertible(draft, name, draft.value(x.name).dtype)
    return Name(name)


def _part(environment: dict, x: Operand, at: Operand) -> torch.Tensor:
    try:
        return eval(fill("{0}[{1}]", (x, at)), environment)
    except Exception:
        raise Unfit from None


@production("mutation", "setitem", 4)
def _setitem(draft: Draft) -> Made:
    x = draft.target(lambda value: value.dim() > 0)
    at = indexed(draft, x, new_axes=False)
    return _effect(draft, "{0}[{1}] = {2}", (x, at, _assigned(draft, at, x)))


@production("mutation", "setitem_add", 1.5)
def _setitem_add(draft: Draft) -> Made:
    x = draft.target(lambda value: value.dim() > 0 and is_number(value))
    at = indexed(draft, x, new_axes=False)
    sign = draft.rng.choice(["+", "*"])
    operands = (x, at, _assigned(draft, at, x))
    return _effect(draft, f"{{0}}[{{1}}] {sign}= {{2}}", operands, halved(draft, x))


@production("mutation", "setitem_mask", 1.5)
def _setitem_mask(draft: Draft) -> Made:
    x = draft.target(lambda value: value.dim() > 0)
    condition = draft.like(x, lambda value: value.dtype is torch.bool)
    return _effect(draft, "{0}[{1}] = {2}", (x, condition, draft.number(draft.value(x.name).dtype)))


@production("mutation", "setitem_positions", 1.5)
def _setitem_positions(draft: Draft) -> Made:
    x = draft.target(lambda value: value.dim() > 0)
    extent = draft.extent(x, 0)
    if extent < 1:
        raise Unfit
    at = draft.pick(
        [
            name
            for name in draft.tensors(lambda value: value.dtype is torch.int64 and value.dim() == 1)
            if all(
                value.numel() == 0 or (int(value.min()) >= 0 and int(value.max()) < extent)
                for value in draft.values(name)
            )
        ]
    )
    number = draft.number(draft.value(x.name).dtype)
    if draft.chance(0.5):
        return _effect(draft, "{0}[{1}] = {2}", (x, Name(at), number))
    dtype = draft.value(x.name).dtype
    text = f"{{0}}.index_put_(({{1}},), torch.tensor({{2}}, dtype={dtype}), accumulate=True)"
    return _effect(draft, text, (x, Name(at), number), halved(draft, x))


@production("mutation", "masked_fill_")
def _masked_fill_(draft: Draft) -> Made:
    x = draft.target()
    condition = draft.beside(x, lambda value: value.dtype is torch.bool)
    number = draft.number(draft.value(x.name).dtype)
    return _effect(draft, "{0}.masked_fill_({1}, {2})", (x, condition, number))


@production("mutation", "of_view", 3)
def _of_view(draft: Draft) -> Made:
    x = draft.target(lambda value: value.dim() > 0 and is_number(value))
    at = indexed(draft, x)
    view = draft.rng.choice(["{0}[{1}]", "{0}.t()[{1}]", "{0}.flatten()[{1}]", "{0}.view(-1)[{1}]"])
    if "flatten" in view or "view" in view:
        at = index((slice(draft.integer(0, 3), None, draft.rng.choice([None, 2])),))
    how = draft.rng.choice([".add_({2})", ".mul_({2})", ".zero_()", ".fill_({2})"])
    number = draft.number(draft.value(x.name).dtype)
    return _effect(draft, view + how, (x, at, number), halved(draft, x))


@production("mutation", "out", 2)
def _out(draft: Draft) -> Made:
    x = draft.tensor(is_number)
    y = draft.beside(x, is_number)
    dtype = torch.result_type(draft.value(x.name), draft.value(y.name))
    out = draft.target(lambda value: value.dtype == dtype)
    shapes = [value.shape for value in draft.values(x.name)]
    alike = [value.shape for value in draft.values(out.name)] == shapes
    # Where elements are written that are read later, as other ones, torch defines no result.
    read = {x.name, y.name} - ({out.name} if alike else set())
    if draft.share_memory(out.name, *read):
        raise Unfit
    features = ("mutation.out_of_right_size" if alike else "mutation.out_of_wrong_size",)
    name = draft.rng.choice(["add", "mul", "sub"])
    return Made(
        f"torch.{name}({{0}}, {{1}}, out={{2}})",
        (x, y, out),
        draft.rng.choice(["v", ""]),
        halved(draft, x, y),
        features=features,
    )


@production("mutation", "out_of_view", 1)
def _out_of_view(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0 and is_number(value))
    dtype = draft.value(x.name).dtype
    out = draft.target(lambda value: value.dtype == dtype)
    if draft.share_memory(out.name, x.name):
        raise Unfit
    view = draft.rng.choice(["{1}[:{0}.shape[0]]", "{1}[1:]", "{1}.t()", "{1}.view({0}.shape)"])
    how = draft.rng.choice(["torch.mul({0}, 2", "torch.add({0}, {0}", "torch.neg({0}"])
    return Made(f"{how}, out={view})", (x, out), draft.rng.choice(["v", ""]), halved(draft, x))


@production("mutation", "set_metadata", 0.6)
def _set_metadata(draft: Draft) -> Made:
    x = draft.target(lambda value: value.dim() == 2)
    how = draft.rng.choice(["{0}.t_()", "{0}.transpose_(0, 1)", "{0}.unsqueeze_(0)"])
    return _effect(draft, how, (x,))


@production("mutation", "resize_", 0.3)
def _resize_(draft: Draft) -> Made:
    # A storage that grows begins with what happens to be in memory.
    x = draft.target(lambda value: value.dim() > 0 and not _repeats(value))
    extent = draft.extent(x, 0)
    return _effect(draft, "{0}.resize_({1})", (x, (max(extent - 1, 0),)))


def _repeats(value: torch.Tensor) -> bool:
    """Whether its storage holds fewer elements than it has."""
    held = value.untyped_storage().nbytes() // value.element_size()
    return held < value.storage_offset() + value.numel()
