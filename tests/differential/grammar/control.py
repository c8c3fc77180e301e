"""Control flow, graph breaks, numbers of Python, and random numbers."""

from __future__ import annotations

import torch

from tests.differential.draft import Draft, Unfit, is_float, is_number
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Name


@production("control", "if_expression", 1.5)
def _if_expression(draft: Draft) -> Made:
    x = draft.tensor(is_number)
    y = draft.beside(x, is_number)
    names = draft.integers()
    if names and draft.chance(0.6):
        return Made(
            "{0} + 1 if {2} > 1 else {0} - {1}", (x, y, Name(draft.pick(names))), rough=True
        )
    if draft.value(x.name).dim() == 0:
        raise Unfit
    return Made("{0} * 2 if {0}.shape[0] > 2 else {0} + {1}", (x, y), rough=True)


@production("control", "loop")
def _loop(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0 and is_float(value))
    names = draft.integers()
    if names and draft.chance(0.5):
        return Made("sum({0} * i for i in range({1}))", (x, Name(draft.pick(names))), rough=True)
    return Made("[row * 2 for row in {0}]", (x,), rough=True)


@production("control", "cond")
def _cond(draft: Draft) -> Made:
    x = draft.exact(is_float)
    text = "torch.cond({0}.sum() > 0, lambda a: a + 1, lambda a: a * 2, ({0},))"
    if draft.chance(0.4):
        text = "torch.cond({0}.sum() > 0, lambda a: a.sin(), lambda a: -a, ({0},))"
    return Made(text, (x,), rough=True)


@production("control", "while_loop", 0.5)
def _while_loop(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dtype is torch.float32 and value.is_contiguous())
    step = draft.rng.choice(["a * 0.5 + i", "(a + 1).tanh()", "a.flip(-1) - 1"])
    if "flip" in step and draft.value(x.name).dim() == 0:
        raise Unfit
    loop = "torch._higher_order_ops.while_loop"
    text = (
        f"{loop}(lambda i, a: i < 3, lambda i, a: (i + 1, {step}), (torch.tensor(0), {{0}} + 0))[1]"
    )
    return Made(text, (x,), rough=True)


@production("control", "graph_break", 1.2)
def _graph_break(draft: Draft) -> Made:
    return Made("torch._dynamo.graph_break()", (), "")


@production("control", "item", 0.8)
def _item(draft: Draft) -> Made:
    x = draft.exact(is_number)
    return Made("{0}.sum().item()", (x,), "n", features=("control.number",))


@production("control", "size", 0.8)
def _size(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    how = draft.rng.choice(["{0}.shape[0]", "{0}.numel() + 1", "{0}.shape", "{0}.dim()"])
    return Made(how, (x,), "n", features=("control.number",))


@production("control", "of_data", 0.5)
def _of_data(draft: Draft) -> Made:
    x = draft.exact(is_number)
    return Made("{0} + 1 if bool(({0} > 0).any()) else {0} - 1", (x,), rough=True)


@production("control", "no_grad", 0.4)
def _no_grad(draft: Draft) -> Made:
    x = draft.tensor(is_float)
    return Made("torch.no_grad()(lambda a: a * 2)({0})", (x,), rough=True)


@production("random", "draw", 2)
def _draw(draft: Draft) -> Made:
    x = draft.tensor(is_float)
    how = draft.rng.choice(
        ["torch.rand_like({0})", "torch.randn_like({0})", "torch.bernoulli({0}.sigmoid())",
         "torch.rand(100)", "torch.randn(80)", "torch.randint(0, 5, (70,))",
         "torch.randint_like({0}, 3)", "torch.randperm({0}.numel())",
         "torch.normal({0}, 0.5)", "torch.normal(0.5, 1.0, (90,))",
         "torch.multinomial(torch.ones(60), 40)",
         "torch.multinomial({0}.abs().reshape(-1) + 1, 50, replacement=True)",
         "torch.poisson({0}.abs())", "torch.binomial({0}.abs().round(), {0}.sigmoid())"]
    )  # fmt: skip
    return Made(how, (x,), rough=True, drawn=True)


@production("random", "dropout")
def _dropout(draft: Draft) -> Made:
    x = draft.tensor(is_float)
    how = draft.rng.choice(
        ["dropout({0}, 0.5)", "dropout({0}, 0.2, inplace=True)", "alpha_dropout({0}, 0.3, True)",
         "rrelu({0}, 0.1, 0.9, training=True)",
         "gumbel_softmax({0}, tau=2.0)"]
    )  # fmt: skip
    return Made(f"torch.nn.functional.{how}", (x,), rough=True, drawn=True)


@production("random", "in_place")
def _in_place(draft: Draft) -> Made:
    x = draft.tensor(is_float)
    how = draft.rng.choice(
        ["{0}.uniform_()", "{0}.normal_()", "{0}.bernoulli_(0.5)", "{0}.exponential_(2.0)",
         "{0}.geometric_(0.4)", "{0}.log_normal_(0.0, 0.25)", "{0}.random_(0, 7)"]
    )  # fmt: skip
    return Made(how, (x,), "", rough=True, drawn=True)


@production("errors", "out_of_range")
def _out_of_range(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    extent = draft.extent(x, 0)
    how = draft.rng.choice(
        ["{0}[{1}]", "{0}.select(0, {1})", "{0}.narrow(0, {1}, 2)", "{0}.transpose(0, 7)",
         "{0}.sum(9)", "{0}.unsqueeze(9)"]
    )  # fmt: skip
    return Made(how, (x, extent + draft.rng.randint(0, 2)))


@production("errors", "data_out_of_range")
def _data_out_of_range(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    at = draft.extent(x, 0) + draft.rng.randint(0, 2)
    how = draft.rng.choice(
        ["{0}[torch.tensor([0, {1}])]", "{0}.index_select(0, torch.tensor([{1}]))",
         "{0}.index_fill(0, torch.tensor([{1}]), 1)"]
    )  # fmt: skip
    return Made(how, (x, at))


@production("errors", "shapes")
def _shapes(draft: Draft) -> Made:
    x, y = draft.tensor(), draft.tensor()
    how = draft.rng.choice(
        ["{0} + {1}", "{0} @ {1}", "torch.cat([{0}, {1}])", "{0}.view(-1, 5)", "{0}.copy_({1})",
         "{0}.add_({1})", "{0}.reshape(7, 3)", "{0}.expand(3, 5, 7)", "torch.stack([{0}, {1}])"]
    )  # fmt: skip
    return Made(how, (x, y))


@production("errors", "dtypes")
def _dtypes(draft: Draft) -> Made:
    x, y = draft.tensor(), draft.tensor()
    how = draft.rng.choice(
        ["{0} @ {1}", "{0}.mean()", "{0}.add_(1.5)", "torch.add({0}, {1}, out={0})", "~{0}",
         "{0}.scatter(0, {1}, 1)", "{0}[{1}]", "{0} - {1}", "torch.complex({0}, {1})",
         "{0}.index_add(0, {1}, {0})", "-{0}", "{0} & {1}", "{0}.softmax(0)"]
    )  # fmt: skip
    return Made(how, (x, y))


@production("errors", "empty")
def _empty(draft: Draft) -> Made:
    x = draft.tensor()
    how = draft.rng.choice(["{0}.amax()", "{0}.max()", "{0}.argmax()", "{0}.amin(0)", "{0}.min(0)"])
    return Made(how, (x,))


@production("errors", "division")
def _division(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dtype in (torch.int64, torch.int32) and value.numel() > 0)
    return Made(draft.rng.choice(["{0} // 0", "{0} % ({0} * 0)", "{0} // ({0} - {0})"]), (x,))
