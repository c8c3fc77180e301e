"""Python numbers that are arguments, where they decide what is computed."""

from __future__ import annotations

from tests.differential.draft import HALF, Draft, Unfit, is_number
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Name


def _column(draft: Draft, *kinds: type) -> Name:
    found = [
        name
        for name in draft.parameters
        if name in draft.columns and type(draft.value(name)) in kinds
    ]
    if not found:
        raise Unfit
    # Most positions are inside of tensors.
    return Name(draft.rng.choice([name for name in found if name != "w"] * 4 + found))


@production("scalars", "slice", 2)
def _slice(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    how = draft.rng.choice(
        ["{0}[{1}:]", "{0}[:{1}]", "{0}[..., {1}:]", "{0}[..., :{1}]", "{0}[{1}:{1} + 2]"]
    )
    return Made(how, (x, _column(draft, int)))


@production("scalars", "computed_slice", 4)
def _computed_slice(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0 and is_number(value))
    how = draft.rng.choice(
        ["({0} + 1)[{1}:]", "{0}[{1}:] * 2", "{0}[..., {1}:] - 1", "-{0}[:{1}]",
         "{0}[{1}:].sum(0)"]
    )  # fmt: skip
    return Made(how, (x, _column(draft, int)), rough=draft.value(x.name).dtype in HALF)


@production("scalars", "argument_slice", 3)
def _argument_slice(draft: Draft) -> Made:
    found = draft.tensors(lambda value: value.dim() > 0 and is_number(value))
    x = Name(draft.pick([name for name in found if name in draft.parameters]))
    how = draft.rng.choice(["{0}[{1}:] * 2", "{0}[{1}:].sum(0)", "{0}[{1}:].abs()"])
    return Made(how, (x, _column(draft, int)), rough=draft.value(x.name).dtype in HALF)


@production("scalars", "shape")
def _shape(draft: Draft) -> Made:
    n = _column(draft, int)
    how = draft.rng.choice(
        ["torch.arange({0})", "torch.full(({0} + 1, 2), {0})", "torch.zeros({0}, 3)",
         "torch.eye({0})", "torch.ones(2, {0}).cumsum(0)"]
    )  # fmt: skip
    return Made(how, (n,))


@production("scalars", "position")
def _position(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0 and 0 not in value.shape)
    how = draft.rng.choice(
        ["{0}[{1} % {0}.shape[0]]", "{0}.roll({1}, 0)",
         "{0}.repeat({1} + 1, *[1] * ({0}.dim() - 1))",
         "{0}.select(-1, {1} % {0}.shape[-1])", "torch.diagonal({0}.expand(3, -1), {1} - 2)"]
    )  # fmt: skip
    return Made(how, (x, _column(draft, int)))


@production("scalars", "arithmetic", 2)
def _arithmetic(draft: Draft) -> Made:
    x = draft.tensor(is_number)
    integral = not draft.value(x.name).dtype.is_floating_point
    n = _column(draft, int, bool) if integral else _column(draft, int, float, bool)
    how = draft.rng.choice(["{0} * {1}", "{0} + {1}", "{1} - {0}", "{0} * {1} + {1}"])
    return Made(how, (x, n), rough=draft.value(x.name).dtype in HALF)


@production("scalars", "write")
def _write(draft: Draft) -> Made:
    x = draft.target(lambda value: value.dim() > 0)
    how = draft.rng.choice(
        ["{0}[{1}:].fill_(1)", "{0}[:{1}].zero_()", "{0}[{1}:{1} + 1] = 2", "{0}.fill_({1})"]
    )
    return Made(how, (x, _column(draft, int)), "")


@production("scalars", "where", 0.7)
def _where(draft: Draft) -> Made:
    x = draft.tensor(is_number)
    return Made("{0} if {1} else {0} * 2", (x, _column(draft, bool, int)))


@production("scalars", "result", 0.7)
def _result(draft: Draft) -> Made:
    return Made("{0} * 2 + 1", (_column(draft, int, float),), "n")


@production("scalars", "size", 0.7)
def _size(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    how = draft.rng.choice(
        ["{0}.shape[0] > 3", "{0}.shape[0] == {0}.shape[-1]", "{0}.shape[0] & 3",
         "{0}.shape[-1] / 2", "({0}.shape[0] | 4) * 2", "{0}.numel() ** 0.5"]
    )  # fmt: skip
    return Made(how, (x,), "n")


@production("scalars", "tensor", 0.7)
def _tensor(draft: Draft) -> Made:
    how = draft.rng.choice(["torch.tensor({0})", "torch.tensor([{0}, 1])", "torch.full((2,), {0})"])
    return Made(how, (_column(draft, int, float, bool),), rough=False)
