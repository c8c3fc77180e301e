"""Operators that run a recurrent layer over all steps of time, and their gradients.

`recurrence` takes the products of the layer's inputs with its weights, which are one product of
matrices for all steps, and does what depends on the step before. PyTorch's own decomposition makes
nodes of every step, so that a graph of 200 steps takes minutes to compile.

The cells, with torch's order of gates (`torch/nn/modules/rnn.py`), where `given` and `product` are
of the inputs and of the state:

- `"tanh"`, `"relu"`: `h = f(given + product)`;
- `"gru"`: reset `r`, update `z` and new `n = tanh(given + r * product)`; `h = n + z * (h - n)`;
- `"lstm"`: input `i`, forget `f`, cell `g`, output `o`; `c = f * c + i * g`; `h = o * tanh(c)`.

With a length, an integer scalar, the steps from there on are padding: a layer in reverse begins at
the last step before them, and what is given for them is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pjrt_bridge.torch_interop import compat

NAMESPACE = compat.OWN_NAMESPACE

SAVED = {"tanh": 0, "relu": 0, "gru": 4, "lstm": 4}
"""By the kind of a cell how many values for an element of its state gradients need, beside the
results."""

_FORWARD = f"{NAMESPACE}::recurrence"
_BACKWARD = f"{NAMESPACE}::recurrence_backward"


def _steps(x: Tensor, length: Tensor | None) -> int:
    return x.shape[0] if length is None else int(length)


def _order(steps: int, reverse: bool) -> Sequence[int]:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _step(kind: str, given: Tensor, product: Tensor, h: Tensor, c: Tensor) -> list[Tensor]:
    """The next state, the next cells, and what gradients need."""
    if kind in ("tanh", "relu"):
        total = given + product
        return [total.tanh() if kind == "tanh" else total.relu(), c]
    if kind == "gru":
        (r, z, n), (reset, update, new) = given.chunk(3, 1), product.chunk(3, 1)
        r, z = (r + reset).sigmoid(), (z + update).sigmoid()
        n = (n + r * new).tanh()
        return [n + z * (h - n), c, r, z, n, new]
    i, f, g, o = (given + product).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return [o * c.tanh(), c, i, f, g, o]


def _run(
    given: Tensor,
    h: Tensor,
    c: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kind: str,
    reverse: bool,
    save: bool,
    length: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    made = _fake(given, h, c, weight, bias, kind, reverse, save)
    outputs, cells, saved = map(torch.zeros_like, made)
    for at in _order(_steps(given, length), reverse):
        h, c, *gates = _step(kind, given[at], torch.nn.functional.linear(h, weight, bias), h, c)
        outputs[at] = h
        if kind == "lstm":
            cells[at] = c
        if save and gates:
            saved[at] = torch.cat(gates, 1)
    return outputs, cells, saved


def _fake(
    given: Tensor,
    h: Tensor,
    c: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kind: str,
    reverse: bool,
    save: bool,
    length: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    steps, (batch, size) = given.shape[0], h.shape
    return (
        given.new_empty(steps, batch, size),
        given.new_empty(steps, batch, size if kind == "lstm" else 0),
        given.new_empty(steps, batch, SAVED[kind] * size if save else 0),
    )


def _run_backward(
    of_outputs: Tensor,
    of_cells: Tensor,
    outputs: Tensor,
    cells: Tensor,
    saved: Tensor,
    h: Tensor,
    c: Tensor,
    weight: Tensor,
    kind: str,
    reverse: bool,
    length: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made = _fake_backward(of_outputs, of_cells, outputs, cells, saved, h, c, weight, kind, reverse)
    of_given, of_products = map(torch.zeros_like, made[:2])
    of_h, of_c = torch.zeros_like(h), torch.zeros_like(c)
    steps = _steps(outputs, length)
    for at in _order(steps, not reverse):
        before = at + 1 if reverse else at - 1
        last_h, last_c = (outputs[before], cells[before]) if 0 <= before < steps else (h, c)
        of_h = of_h + of_outputs[at]
        direct = None
        if kind == "tanh":
            through = total = of_h * (1 - outputs[at] ** 2)
        elif kind == "relu":
            through = total = of_h * (outputs[at] > 0)
        elif kind == "gru":
            r, z, n, new = saved[at].chunk(4, 1)
            of_n = of_h * (1 - z) * (1 - n * n)
            of_r, of_z = of_n * new * r * (1 - r), of_h * (last_h - n) * z * (1 - z)
            total = torch.cat([of_r, of_z, of_n], 1)
            through = of_products[at] = torch.cat([of_r, of_z, of_n * r], 1)
            direct = of_h * z
        else:
            i, f, g, o = saved[at].chunk(4, 1)
            bent = cells[at].tanh()
            of_c = of_c + of_cells[at] + of_h * o * (1 - bent * bent)
            of_i, of_f = of_c * g * i * (1 - i), of_c * last_c * f * (1 - f)
            of_g, of_o = of_c * i * (1 - g * g), of_h * bent * o * (1 - o)
            through = total = torch.cat([of_i, of_f, of_g, of_o], 1)
            of_c = of_c * f
        of_given[at] = total
        of_h = through @ weight
        if direct is not None:
            of_h = of_h + direct
    return of_given, of_products, of_h, of_c


def _fake_backward(
    of_outputs: Tensor,
    of_cells: Tensor,
    outputs: Tensor,
    cells: Tensor,
    saved: Tensor,
    h: Tensor,
    c: Tensor,
    weight: Tensor,
    kind: str,
    reverse: bool,
    length: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    steps, batch, _ = outputs.shape
    rows = weight.shape[0]
    return (
        outputs.new_empty(steps, batch, rows),
        # Of other cells they are those of what is given.
        outputs.new_empty(steps, batch, rows if kind == "gru" else 0),
        h.new_empty(h.shape),
        c.new_empty(c.shape),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, h, c, weight, bias, kind, reverse, *_ = inputs
    outputs, cells, saved = output
    # Copies: under `no_grad` a function may write into its results before backward reads these.
    ctx.save_for_backward(h, c, weight, outputs.clone(), cells.clone(), saved)
    ctx.kind, ctx.reverse, ctx.has_bias = kind, reverse, bias is not None


def _gradients(ctx: Any, of_outputs: Tensor, of_cells: Tensor, _: Tensor) -> tuple[Any, ...]:
    h, c, weight, outputs, cells, saved = ctx.saved_tensors
    of_given, of_products, of_h, of_c = getattr(torch.ops, NAMESPACE).recurrence_backward(
        of_outputs, of_cells, outputs, cells, saved, h, c, weight, ctx.kind, ctx.reverse
    )
    parts = [outputs[1:], h.unsqueeze(0)] if ctx.reverse else [h.unsqueeze(0), outputs[:-1]]
    flat = (of_products if ctx.kind == "gru" else of_given).flatten(0, 1)
    of_weight = flat.t() @ torch.cat(parts).flatten(0, 1)
    of_bias = flat.sum(0) if ctx.has_bias else None
    return of_given, of_h, of_c, of_weight, of_bias, None, None, None, None


def _define() -> None:
    schema = "(Tensor given, Tensor h, Tensor c, Tensor weight, Tensor? bias, str kind, "
    schema += "bool reverse, bool save, Tensor? length=None) -> (Tensor, Tensor, Tensor)"
    torch.library.define(_FORWARD, schema)
    torch.library.impl(_FORWARD, "cpu", _run)
    torch.library.register_fake(_FORWARD, _fake)
    schema = "(Tensor of_outputs, Tensor of_cells, Tensor outputs, Tensor cells, Tensor saved, "
    schema += "Tensor h, Tensor c, Tensor weight, str kind, bool reverse, Tensor? length=None)"
    torch.library.define(_BACKWARD, schema + " -> (Tensor, Tensor, Tensor, Tensor)")
    torch.library.impl(_BACKWARD, "cpu", _run_backward)
    torch.library.register_fake(_BACKWARD, _fake_backward)
    made = compat.operator(f"{NAMESPACE}.recurrence.default")
    assert made is not None
    compat.register_gradients(made, _gradients, _keep)


_define()
