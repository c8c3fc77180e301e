"""Lists, tuples and dicts of tensors: their elements, and themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.differential.draft import HALF, Draft, Unfit, is_number
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Code, Name, Operand, Statement, element, shown

KINDS = ("list", "tuple", "dict", "nested")
"""Of containers that are arguments."""

_KEYS = "abcdefgh"


def contain(draft: Draft) -> None:
    """Put some of the tensors that are arguments into containers, which are arguments instead."""
    rng = draft.rng
    count = rng.choices([1, 2], [3, 1])[0]
    for number, kind in enumerate(rng.sample(KINDS, count)):
        pool = [name for name in draft.parameters if isinstance(draft.value(name), torch.Tensor)]
        if not pool:
            return
        chosen = rng.sample(pool, rng.randint(1, len(pool)))
        items: list[Operand] = [Name(name) for name in chosen]
        if rng.random() < 0.2:
            items.append(rng.choice(items))
            draft.features.add("arguments.twice_in_container")
        value = {
            "list": items,
            "tuple": tuple(items),
            "dict": dict(zip(_KEYS, items, strict=False)),
            "nested": {"a": items[0], "b": items[1:], "c": (items[0],)},
        }[kind]
        container = f"c{number}"
        draft.prepare(Statement("{0}", (value,), container, "", (f"arguments.{kind}",)))
        # One that stays an argument of its own is then given twice.
        left = [name for name in draft.parameters if name not in chosen or rng.random() < 0.15]
        draft.parameters = [*left, container]


def take_out(draft: Draft) -> None:
    """Begin the body with some elements of the containers among the arguments."""
    for found in list(_elements(draft)):
        if draft.chance(0.5):
            features = ("containers.element",)
            draft.add(Statement("{0}", (found,), draft.new(), "", features))


def _is_container(value: Any) -> bool:
    return type(value) in (list, tuple, dict) and len(value) > 0


def _containers(draft: Draft, *kinds: type) -> list[str]:
    return [
        name
        for name in draft.visible
        if all(
            _is_container(value) and (not kinds or type(value) in kinds)
            for value in draft.values(name)
        )
    ]


def _container(draft: Draft, *kinds: type) -> Name:
    return Name(draft.pick(_containers(draft, *kinds)))


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else [*range(len(value))]


def _elements(
    draft: Draft, fits: Callable[[torch.Tensor], bool] = lambda _: True
) -> Iterator[Code]:
    """The tensors in containers that fit in all calls."""

    def within(found: Operand, values: list[Any]) -> Iterator[Code]:
        if isinstance(found, Code) and all(isinstance(item, torch.Tensor) for item in values):
            if all(map(fits, values)):
                yield found
        elif all(map(_is_container, values)):
            for key in _keys(values[0]):
                if all(key in _keys(value) for value in values):
                    inner = [value[key] for value in values]
                    yield from within(element(found, key), inner)

    for name in _containers(draft):
        yield from within(Name(name), draft.values(name))


def _value(draft: Draft, found: Code) -> torch.Tensor:
    """An element in the first call."""
    value: torch.Tensor = eval(shown(found), draft.environments[0])
    return value


@production("containers", "element", 3)
def _element(draft: Draft) -> Made:
    return Made("{0}", (draft.pick(list(_elements(draft))),))


@production("containers", "write_element", 3)
def _write_element(draft: Draft) -> Made:
    found = draft.pick(list(_elements(draft, is_number)))
    value = _value(draft, found)
    whole = ["{0}.add_({1})", "{0}.mul_({1})", "{0}.zero_()", "{0}.fill_({1})"]
    parts = ["{0}[1:].add_({1})", "{0}[..., 0] = {1}", "{0}.view(-1)[::2].fill_({1})",
             "{0}[0] *= {1}", "{0}.t().mul_({1})"]  # fmt: skip
    how = draft.rng.choice([*whole, *parts] if value.dim() else whole)
    return Made(how, (found, draft.number(value.dtype)), "", rough=value.dtype in HALF)


@production("containers", "out_into_element", 0.7)
def _out_into_element(draft: Draft) -> Made:
    x = draft.tensor(is_number)
    dtype = draft.value(x.name).dtype
    out = draft.pick(list(_elements(draft, lambda value: value.dtype == dtype)))
    makes = draft.rng.choice(["v", ""])
    return Made("torch.mul({0}, 2, out={1})", (x, out), makes, rough=dtype in HALF)


@production("containers", "replace_element", 1.2)
def _replace_element(draft: Draft) -> Made:
    container = _container(draft, list, dict)
    key = draft.rng.choice(_keys(draft.value(container.name)))
    return Made("{0}[{1}] = {2}", (container, key, draft.tensor()), "")


@production("containers", "add_element")
def _add_element(draft: Draft) -> Made:
    container = _container(draft, list, dict)
    if isinstance(draft.value(container.name), list):
        return Made("{0}.append({1})", (container, draft.tensor()), "")
    return Made('{0}["new"] = {1}', (container, draft.tensor()), "")


@production("containers", "take_element", 0.6)
def _take_element(draft: Draft) -> Made:
    container = _container(draft, list, dict)
    keys = _keys(draft.value(container.name))
    if len(keys) < 2:
        raise Unfit
    return Made("{0}.pop({1})", (container, draft.rng.choice(keys)))


def _flat(draft: Draft) -> tuple[str, Name]:
    """A container of tensors alone, and how a list of them is written."""
    container = _container(draft)
    inside = draft.value(container.name)
    items = inside.values() if isinstance(inside, dict) else inside
    if not all(isinstance(item, torch.Tensor) for item in items):
        raise Unfit
    return "list({0}.values())" if isinstance(inside, dict) else "list({0})", container


@production("containers", "joined", 1.5)
def _joined(draft: Draft) -> Made:
    text, container = _flat(draft)
    how = draft.rng.choice([f"sum({text})", f"torch.cat({text})", f"torch.stack({text})"])
    return Made(how, (container,), rough=True)


@production("containers", "mapped")
def _mapped(draft: Draft) -> Made:
    text, container = _flat(draft)
    if isinstance(draft.value(container.name), dict):
        return Made("{{key: item * 2 for key, item in {0}.items()}}", (container,), rough=True)
    return Made(f"[item * 2 for item in {text}]", (container,), rough=True)


@production("containers", "foreach")
def _foreach(draft: Draft) -> Made:
    text, container = _flat(draft)
    if draft.chance(0.6):
        how = draft.rng.choice(["add_", "mul_"])
        return Made(f"torch._foreach_{how}({text}, 2)", (container,), "", rough=True)
    return Made(f"torch._foreach_add({text}, {text})", (container,), rough=True)
