"""Losses, of values and of targets that are made of them."""

from __future__ import annotations

import torch

from tests.differential.draft import Draft, Unfit, is_float
from tests.differential.grammar.layers import constant, weight
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Name, Operand

_F = "torch.nn.functional."

_OF_PAIRS = (
    "mse_loss({0}, {1}", "l1_loss({0}, {1}", "smooth_l1_loss({0}, {1}, beta=0.5",
    "huber_loss({0}, {1}, delta=0.7", "binary_cross_entropy({0}.sigmoid(), {1}.sigmoid()",
    "binary_cross_entropy_with_logits({0}, {1}.sigmoid()", "kl_div({0}, {1}.sigmoid()",
    "kl_div({0}, {1}, log_target=True", "poisson_nll_loss({0}.clamp(-3, 3), {1}.abs()",
    "poisson_nll_loss({0}.abs(), {1}.abs(), log_input=False, full=True",
    "gaussian_nll_loss({0}, {1}, {1}.abs() + 0.5", "soft_margin_loss({0}, {1}.sign()",
    "hinge_embedding_loss({0}, {1}.sign() + ({1} == 0)",
)  # fmt: skip

_OF_ROWS = (
    "cosine_embedding_loss({0}, {1}, {0}[:, 0].sign() + ({0}[:, 0] == 0)",
    "margin_ranking_loss({0}[:, 0], {1}[:, 0], {0}[:, 0].sign(), margin=0.2",
    "triplet_margin_loss({0}, {1}, {1} + 1, margin=2.0",
    "multilabel_soft_margin_loss({0}, ({1} > 0).to({0}.dtype)",
)


def _reduction(draft: Draft) -> str:
    return draft.rng.choice(["", ', reduction="sum"', ', reduction="none"'])


@production("losses", "of_pairs", 3)
def _of_pairs(draft: Draft) -> Made:
    x = draft.tensor(is_float)
    dtype = draft.value(x.name).dtype
    y = draft.like(x, lambda value: value.dtype is dtype)
    how = draft.rng.choice(_OF_PAIRS)
    return Made(f"{_F}{how}{_reduction(draft)})", (x, y), rough=True)


@production("losses", "of_rows", 1.5)
def _of_rows(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() == 2 and value.shape[1] > 0)
    y = draft.like(x, is_float)
    how = draft.rng.choice(_OF_ROWS)
    return Made(f"{_F}{how}{_reduction(draft)})", (x, y), rough=True)


def _labels(draft: Draft, x: Name, classes: int) -> str:
    """Labels for each place, as text of {0}: the classes lie along dimension 1, or the last one."""
    dim = 1 if draft.value(x.name).dim() > 1 else 0
    return draft.rng.choice(
        [
            f"{{0}}.detach().nan_to_num().select({dim}, 0).mul(4).long().abs() % {classes}",
            f"{{0}}.new_zeros({{0}}.shape[:{dim}] + {{0}}.shape[{dim + 1}:]).long()",
        ]
    )


@production("losses", "of_classes", 3)
def _of_classes(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and 1 <= value.dim() <= 4)
    classes = constant(draft, x, 1 if draft.value(x.name).dim() > 1 else 0)
    labels = _labels(draft, x, classes)
    options: list[str] = []
    w: Operand = None
    if draft.chance(0.3):
        w = weight(draft, classes, dtype=draft.value(x.name).dtype)
        options.append("weight={1}.detach().abs()")
    if draft.chance(0.3):
        options.append(f"ignore_index={draft.rng.choice([0, classes - 1, -100])}")
    name = draft.rng.choice(["cross_entropy", "cross_entropy", "nll_loss"])
    if name == "cross_entropy" and draft.chance(0.3):
        options.append("label_smoothing=0.1")
    more = "".join(f", {option}" for option in options)
    return Made(f"{_F}{name}({{0}}, {labels}{more}{_reduction(draft)})", (x, w), rough=True)


@production("losses", "of_distributions")
def _of_distributions(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() >= 2)
    y = draft.like(x, is_float)
    text = f"{_F}cross_entropy({{0}}, {{1}}.softmax(1){_reduction(draft)})"
    return Made(text, (x, y), rough=True)


@production("losses", "of_margins", 0.7)
def _of_margins(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() == 2)
    labels = _labels(draft, x, constant(draft, x, 1))
    return Made(f"{_F}multi_margin_loss({{0}}, {labels}{_reduction(draft)})", (x,), rough=True)


@production("losses", "of_lists", 0.7)
def _of_lists(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() == 2)
    labels = f"({{0}} * 0).nan_to_num().long() + {draft.rng.choice([0, -1])}"
    return Made(f"{_F}multilabel_margin_loss({{0}}, {labels}{_reduction(draft)})", (x,), rough=True)


@production("losses", "of_sequences", 0.7)
def _of_sequences(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dtype is torch.float32 and value.dim() == 3)
    if constant(draft, x, 2) < 3:
        raise Unfit
    rows = "torch.full(({0}.shape[1],), "
    lists = "torch.tensor([1, 2]).expand({0}.shape[1], 2)"
    how = f"{lists}, {rows}{{0}}.shape[0]), {rows}2), zero_infinity={draft.chance(0.5)}"
    text = f"{_F}ctc_loss({{0}}.log_softmax(2), {how}{_reduction(draft)})"
    return Made(text, (x,), rough=True)
