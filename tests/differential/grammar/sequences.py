"""Layers over sequences and indices: embeddings, recurrent layers, attention, products of two."""

from __future__ import annotations

import torch

from tests.differential.draft import Draft, is_float
from tests.differential.grammar.layers import bias_of, constant, weight
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Name

_F = "torch.nn.functional."


@production("layers", "embedding", 2)
def _embedding(draft: Draft) -> Made:
    rng = draft.rng
    rows, columns = rng.choice([3, 5]), rng.choice([1, 4])
    dtype = rng.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16])
    table = weight(draft, rows, columns, dtype=dtype)
    x = draft.exact(lambda value: value.dtype in (torch.int32, torch.int64) or is_float(value))
    places = f"{{0}}.nan_to_num().long().abs() % {rows}"
    kind = rng.choice(["one", "one", "bag"])
    if kind == "one":
        how = rng.choice(["", ", padding_idx=1", ", scale_grad_by_freq=True", ", padding_idx=-1"])
        return Made(f"{_F}embedding({places}, {{1}}{how})", (x, table), rough=True)
    mode = rng.choice(["sum", "mean", "max"])
    last = rng.choice(["", ", padding_idx=0"])
    first = f"torch.arange(0, {{0}}.numel(), 2), mode={{2}}{last}"
    text = f"{_F}embedding_bag(({places}).reshape(-1), {{1}}, {first})"
    return Made(text, (x, table, mode), rough=True)


_GATES = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}
"""Of a kind of recurrent layer."""


def _recurrence(draft: Draft, dims: int) -> tuple[str, int, tuple[Name, Name, Name]]:
    """A kind of recurrent layer, the width of its state, and its argument with both weights.

    Raises:
        Unfit: there is no argument of so many dimensions.
    """
    x = draft.tensor(lambda value: value.dim() == dims and value.dtype is torch.float32)
    size, width = constant(draft, x, -1), draft.rng.choice([1, 3])
    kind = draft.rng.choice(list(_GATES))
    rows = _GATES[kind] * width
    given = weight(draft, rows, size, dtype=torch.float32)
    return kind, width, (x, given, weight(draft, rows, width, dtype=torch.float32))


@production("layers", "cell")
def _cell(draft: Draft) -> Made:
    kind, width, operands = _recurrence(draft, 2)
    state = f"{{0}}.new_ones({{0}}.shape[0], {width})"
    if kind == "lstm":
        state, last = f"[{state}, {state}]", draft.rng.choice(["[0]", "[1]"])
    else:
        last = ""
    text = f"torch.{kind}_cell({{0}}, {state}, {{1}}, {{2}}){last}"
    return Made(text, operands, rough=True)


@production("layers", "recurrent")
def _recurrent(draft: Draft) -> Made:
    kind, width, operands = _recurrence(draft, 3)
    first = draft.rng.choice([False, True])
    state = f"{{0}}.new_ones(1, {{0}}.shape[{int(not first)}], {width})"
    if kind == "lstm":
        state = f"[{state}, {state}]"
    # Without biases, one layer, no dropout, not in training, in one direction.
    options = f"False, 1, 0.0, False, False, {first}"
    last = draft.rng.choice(["[0]", "[1]"])
    text = f"torch.{kind}({{0}}, {state}, [{{1}}, {{2}}], {options}){last}"
    return Made(text, operands, rough=True)


@production("layers", "attention")
def _attention(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() in (3, 4))
    how = draft.rng.choice(["", ", is_causal=True", ", scale=0.3"])
    y = draft.rng.choice(["{0}", "{0} * 0.5", "{0}.flip(-2)"])
    return Made(f"{_F}scaled_dot_product_attention({{0}}, {y}, {{0}}{how})", (x,), rough=True)


@production("layers", "bilinear", 0.7)
def _bilinear(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() >= 2)
    size, dtype = constant(draft, x, -1), draft.value(x.name).dtype
    w = weight(draft, 2, size, size, dtype=dtype)
    return Made(
        f"{_F}bilinear({{0}}, {{0}} + 1, {{1}}, {{2}})",
        (x, w, bias_of(draft, 2, dtype)),
        rough=True,
    )
