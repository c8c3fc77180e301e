"""Reductions and running sums."""

from __future__ import annotations

import torch

from tests.differential.draft import HALF, Draft, is_float, is_number, is_real
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Name, Operand


def _over(draft: Draft, x: Name, several: bool = True) -> tuple[str, tuple[Operand, ...]]:
    """Arguments `dim` and `keepdim`, as text from {1} on."""
    rank = draft.value(x.name).dim()
    if rank == 0 or draft.chance(0.3):
        return "", ()
    dim: Operand = draft.dim(x)
    if several and rank > 1 and draft.chance(0.25):
        dim = tuple(draft.rng.sample(range(rank), 2))
    if draft.chance(0.3):
        return "{1}, keepdim=True", (dim,)
    return "{1}", (dim,)


@production("reductions", "sum", 3)
def _sum(draft: Draft) -> Made:
    x = draft.tensor()
    text, more = _over(draft, x)
    return Made(f"{{0}}.sum({text})", (x, *more), rough=draft.value(x.name).dtype in HALF)


@production("reductions", "mean", 1.5)
def _mean(draft: Draft) -> Made:
    x = draft.tensor(is_float)
    text, more = _over(draft, x)
    name = draft.rng.choice(["mean", "mean", "var", "std"])
    return Made(f"{{0}}.{name}({text})", (x, *more), rough=True)


@production("reductions", "extreme", 1.5)
def _extreme(draft: Draft) -> Made:
    x = draft.tensor(lambda value: not value.dtype.is_complex)
    text, more = _over(draft, x)
    name = draft.rng.choice(["amax", "amin"])
    return Made(f"{{0}}.{name}({text})", (x, *more))


@production("reductions", "extreme_pair")
def _extreme_pair(draft: Draft) -> Made:
    x = draft.exact(lambda value: not value.dtype.is_complex and value.dim() > 0)
    name = draft.rng.choice(["max", "min"])
    if draft.chance(0.3):
        return Made(f"{{0}}.{name}()", (x,))
    return Made(f"{{0}}.{name}({{1}})[0]", (x, draft.dim(x)))


@production("reductions", "argument")
def _argument(draft: Draft) -> Made:
    x = draft.exact(lambda value: is_real(value) and value.dim() > 0)
    name = draft.rng.choice(["argmax", "argmin"])
    text, more = _over(draft, x, several=False)
    return Made(f"{{0}}.{name}({text})", (x, *more))


@production("reductions", "prod", 0.7)
def _prod(draft: Draft) -> Made:
    x = draft.tensor(is_number)
    text, more = _over(draft, x, several=False)
    return Made(f"{{0}}.clamp(-2, 2).prod({text})" if not draft.value(x.name).dtype.is_complex
                else f"{{0}}.prod({text})", (x, *more), rough=True)  # fmt: skip


@production("reductions", "any")
def _any(draft: Draft) -> Made:
    x = draft.exact()
    text, more = _over(draft, x, several=False)
    return Made(f"{{0}}.{draft.rng.choice(['any', 'all'])}({text})", (x, *more))


@production("reductions", "logsumexp", 0.6)
def _logsumexp(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() > 0)
    name = draft.rng.choice(["logsumexp", "softmax", "log_softmax"])
    return Made(f"torch.{name}({{0}}, {{1}})", (x, draft.dim(x)), rough=True)


@production("reductions", "norm", 0.6)
def _norm(draft: Draft) -> Made:
    x = draft.tensor(is_float)
    if draft.value(x.name).dim() and draft.chance(0.5):
        return Made("torch.linalg.vector_norm({0}, dim={1})", (x, draft.dim(x)), rough=True)
    return Made("{0}.norm()", (x,), rough=True)


@production("reductions", "cumulative")
def _cumulative(draft: Draft) -> Made:
    x = draft.tensor(is_number)
    name = draft.rng.choice(["cumsum", "cumsum", "cumprod"])
    if name == "cumprod":
        x = draft.tensor(is_real)
        return Made("{0}.clamp(-1, 1).cumprod({1})", (x, draft.dim(x)), rough=True)
    return Made("{0}.cumsum({1})", (x, draft.dim(x)), rough=draft.value(x.name).dtype in HALF)


@production("reductions", "count", 0.5)
def _count(draft: Draft) -> Made:
    return Made("torch.count_nonzero({0})", (draft.exact(),))


@production("reductions", "dtype", 0.5)
def _dtype(draft: Draft) -> Made:
    x = draft.tensor(is_real)
    return Made("{0}.sum(dtype={1})", (x, draft.rng.choice([torch.float64, torch.float32])))
