"""Parts of a function under rules of their own: autocast, checkpoints, own gradients, maps."""

from __future__ import annotations

import torch

from tests.differential.draft import Draft, Unfit, is_float, is_number
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Name


def _differentiable(draft: Draft) -> Name:
    return draft.tensor(lambda value: is_float(value) and value.requires_grad)


@production("regions", "autocast", 2)
def _autocast(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dtype is torch.float32 and value.dim() >= 1)
    y = draft.tensor(lambda value: value.dtype is torch.float32 and value.dim() >= 1)
    dtype = draft.rng.choice([torch.bfloat16, torch.bfloat16, torch.float16])
    how = draft.rng.choice(
        ["a @ b", "a @ b.mT", "(a @ b.mT) + 1", "(a @ b).softmax(-1, dtype=a.dtype)",
         "(a.mT @ b).relu() @ b.mT",
         "torch.nn.functional.linear(a, b)", "a * b", "torch.cat([a @ b.mT, a @ b.mT])"]
    )  # fmt: skip
    # That of the host does not reach what is on a device.
    autocast = "torch.autocast({0}.device.type, dtype={2})"
    text = f"{autocast}(lambda a, b: {how})({{0}}, {{1}})"
    return Made(text, (x, y, dtype), rough=True)


@production("regions", "written_without_gradients", 2)
def _written_without_gradients(draft: Draft) -> Made:
    x = draft.target(is_number)
    how = draft.rng.choice(
        ["a.add_(1)", "a.mul_({1})", "[part.mul_(2) for part in a.chunk(2)]",
         "a.view(-1)[1:].zero_()", "a.t().add_({1})", "a.copy_(a * 2)", "a[:1].sub_({1})"]
    )  # fmt: skip
    number = draft.number(draft.value(x.name).dtype)
    return Made(f"torch.no_grad()(lambda a: {how})({{0}})", (x, number), "", rough=True)


@production("regions", "written_data", 1.5)
def _written_data(draft: Draft) -> Made:
    x = draft.target(is_number)
    how = draft.rng.choice(
        ["{0}.data.add_(1)", "{0}.data.mul_({1})", "{0}.detach().add_({1})", "{0}.data[:1].zero_()"]
    )
    number = draft.number(draft.value(x.name).dtype)
    return Made(how, (x, number), "", rough=True)


@production("regions", "checkpoint")
def _checkpoint(draft: Draft) -> Made:
    x = _differentiable(draft)
    how = draft.rng.choice(["a.sin()", "a.tanh() * a", "(a * 2)[:1] + a", "a.t().exp().sum(0)"])
    if "exp" in how and draft.value(x.name).dim() > 2:
        raise Unfit
    text = f"torch.utils.checkpoint.checkpoint(lambda a: {how}, {{0}}, use_reentrant=False)"
    return Made(text, (x,), rough=True)


@production("regions", "own_gradient")
def _own_gradient(draft: Draft) -> Made:
    name = draft.rng.choice(["Rounded", "Passed", "Written"])
    x = draft.tensor(lambda value: is_float(value) and (name != "Written" or not value.is_leaf))
    return Made(f"{name}.apply({{0}})", (x,), rough=True)


@production("regions", "hook", 0.7)
def _hook(draft: Draft) -> Made:
    if any(not statement.target for statement in draft.body):
        # torch (2.13) ends the process in some programs that hook a copy of what was written.
        raise Unfit
    how = draft.rng.choice(["g * 2", "g.clamp(-1, 1)", "g.clone().fill_(1)"])
    return Made(f"{{0}}.register_hook(lambda g: {how})", (_differentiable(draft),), "")


@production("regions", "vmap", 1.5)
def _vmap(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() >= 1 and is_float(value))
    y = draft.tensor(lambda value: value.dtype == draft.value(x.name).dtype)
    how = draft.rng.choice(
        ["(lambda a: a * a.sum())({0})", "(lambda a: a.t() * 2, out_dims=-1)({0})",
         "(lambda a, b: a + b, in_dims=(0, None))({0}, {1})",
         "(lambda a: a.sort()[0], in_dims=-1)({0})",
         "(lambda a, b: a * b)({0}, {0})", "(torch.func.vmap(lambda a: a.sin()))({0})",
         "(lambda a: torch.where(a > 0, a, -a).cumsum(0))({0})",
         "(lambda a: a.clone().add_(1))({0})",
         "(lambda a: a.softmax(0) @ a)({0})",
         "(lambda a, b: a.outer(b), in_dims=(None, 0))({0}, {0})",
         "(lambda a: a.flip(0).cumsum(0), out_dims=-1)({0})", "(lambda a: a.max(0)[0])({0})",
         "(lambda a: a[1:] - a[:-1], chunk_size=2)({0})", "(lambda a: a.view(-1)[::2])({0})",
         "(lambda a: torch.nn.functional.layer_norm(a, a.shape))({0})",
         "(lambda a: a.gather(0, a.argsort(0, stable=True)))({0})",
         "(lambda a: torch.nn.functional.linear(a, {0}), in_dims=0)({0})",
         "(torch.func.vmap(torch.func.vmap(torch.tanh, in_dims=1)))({0})"]
    )  # fmt: skip
    return Made(f"torch.func.vmap{how}", (x, y), rough=True)


@production("regions", "derivative", 1.2)
def _derivative(draft: Draft) -> Made:
    x = draft.tensor(is_float)
    how = draft.rng.choice(
        ["grad(lambda a: (a * a).sum())({0})", "grad(lambda a: a.sin().sum())({0})",
         "grad_and_value(lambda a: (a ** 2).mean())({0})", "jvp(torch.sin, ({0},), ({0},))",
         "jacrev(lambda a: a.sin())({0})", "jacfwd(lambda a: a * a)({0})",
         "hessian(lambda a: (a ** 3).sum())({0})",
         "vjp(lambda a: a.exp2(), {0})[1](torch.ones_like({0}))[0]",
         "grad(lambda a: torch.func.grad(lambda b: (b ** 3).sum())(a).sum())({0})",
         "linearize(torch.tanh, {0})[1]({0})",
         "jvp(lambda a: a.cumsum(0) * a, ({0},), ({0} * 2,))[1]",
         "vjp(lambda a: a * 3, {0})[0]", "vmap(torch.func.grad(lambda a: (a ** 3).sum()))({0})"]
    )  # fmt: skip
    return Made(f"torch.func.{how}", (x,), rough=True)
