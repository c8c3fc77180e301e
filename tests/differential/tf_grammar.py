"""Statements of TensorFlow functions, by what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.differential.ir import Name, Operand, index
from tests.differential.tf_draft import Draft


def _is_number(value: Any) -> bool:
    return not value.dtype.is_bool


def _is_real(value: Any) -> bool:
    return not value.dtype.is_bool and not value.dtype.is_complex


def _is_float(value: Any) -> bool:
    return bool(value.dtype.is_floating)


def _ranked(value: Any) -> bool:
    return value.shape.rank > 0


Made = tuple[str, tuple[Operand, ...], str]
"""Text, operands, and "v" for a value or empty for an effect."""

PRODUCTIONS: dict[str, tuple[Callable[[Draft], Made], float]] = {}

ERRORS: dict[str, Callable[[Draft], Made]] = {}
"""Last statements that raise."""


def production(weight: float = 1.0) -> Any:
    def register(function: Callable[[Draft], Made]) -> Callable[[Draft], Made]:
        PRODUCTIONS[function.__name__.strip("_")] = (function, weight)
        return function

    return register


def error(function: Callable[[Draft], Made]) -> Callable[[Draft], Made]:
    ERRORS[function.__name__.strip("_")] = function
    return function


@production(4)
def _binary(d: Draft) -> Made:
    x = d.tensor(_is_number)
    dtype = d.value(x.name).dtype
    sign = d.rng.choice(["+", "-", "*"])
    if d.rng.random() < 0.4:
        return f"{{0}} {sign} {{1}}", (x, d.rng.choice([1, 2, 3])), "v"
    return f"{{0}} {sign} {{1}}", (x, d.tensor(lambda value: value.dtype == dtype)), "v"


@production(2)
def _unary(d: Draft) -> Made:
    if d.rng.random() < 0.4:
        name = d.rng.choice(["tanh", "sin", "sigmoid", "nn.relu", "nn.softplus", "floor"])
        return f"tf.{name}({{0}})", (d.tensor(_is_float),), "v"
    name = d.rng.choice(["abs", "negative", "square", "sign", "identity", "zeros_like"])
    return f"tf.{name}({{0}})", (d.tensor(_is_real),), "v"


@production()
def _compare(d: Draft) -> Made:
    x = d.tensor(_is_real)
    return f"{{0}} {d.rng.choice(['>', '<=', '!='])} {{1}}", (x, d.rng.choice([0, 1])), "v"


@production()
def _where(d: Draft) -> Made:
    x = d.tensor(_is_number)
    dtype = d.value(x.name).dtype
    condition = d.tensor(lambda value: value.dtype.is_bool)
    return "tf.where({0}, {1}, {2})", (condition, x, d.tensor(lambda v: v.dtype == dtype)), "v"


@production(2)
def _cast(d: Draft) -> Made:
    dtype = d.rng.choice(["float32", "float64", "int32", "int64", "bfloat16", "bool"])
    return "tf.cast({0}, {1})", (d.tensor(lambda v: not v.dtype.is_complex), dtype), "v"


def _index(d: Draft, x: Name) -> Operand:
    items: list[Operand] = []
    for size in d.value(x.name).shape:
        if d.rng.random() < 0.2 and size:
            items.append(d.rng.choice([0, -1]))
        else:
            start = d.rng.choice([None, 0, 1, 2, -2])
            stop = d.rng.choice([None, None, 2, 3, -1])
            items.append(slice(start, stop, d.rng.choice([None, None, 2, -1])))
        if d.rng.random() < 0.5:
            break
    return index(tuple(items))


@production(4)
def _slice(d: Draft) -> Made:
    x = d.tensor(_ranked)
    return "{0}[{1}]", (x, _index(d, x)), "v"


@production(2)
def _shape(d: Draft) -> Made:
    x = d.tensor(_ranked)
    how = d.rng.choice(
        ["tf.reshape({0}, [-1])", "tf.transpose({0})", "tf.expand_dims({0}, 0)",
         "tf.reverse({0}, [0])", "tf.reshape({0}, [tf.shape({0})[0], -1])", "tf.tile({0}[None], "
         "[2] + [1] * {0}.shape.rank)", "tf.roll({0}, 1, 0)", "tf.pad({0}, [[1, 0]] + [[0, 0]] * "
         "({0}.shape.rank - 1))"]
    )  # fmt: skip
    return how, (x,), "v"


@production(3)
def _reduce(d: Draft) -> Made:
    x = d.tensor(lambda v: _is_real(v) and _ranked(v))
    name = d.rng.choice(["sum", "max", "min", "mean", "prod"])
    if name == "mean":
        x = d.tensor(lambda v: _is_float(v) and _ranked(v))
    if name == "prod":
        return "tf.reduce_prod(tf.clip_by_value({0}, -1, 1), 0)", (x,), "v"
    axis = d.rng.choice([None, 0, -1])
    if d.rng.random() < 0.3:
        return f"tf.reduce_{name}({{0}}, {{1}}, keepdims=True)", (x, axis), "v"
    return f"tf.reduce_{name}({{0}}, {{1}})", (x, axis), "v"


@production()
def _logic(d: Draft) -> Made:
    x = d.tensor(lambda v: v.dtype.is_bool)
    how = d.rng.choice(["tf.reduce_any({0})", "tf.reduce_all({0})", "tf.logical_not({0})"])
    return how, (x,), "v"


@production()
def _argument(d: Draft) -> Made:
    x = d.tensor(lambda v: _is_real(v) and _ranked(v) and v.dtype != tf.bfloat16)
    how = d.rng.choice(
        ["tf.argmax({0}, 0)", "tf.sort({0}, 0)", "tf.argsort({0}, 0, stable=True)",
         "tf.cumsum({0}, 0)", "tf.math.top_k(tf.reshape({0}, [-1]), 1)[0]"]
    )  # fmt: skip
    return how, (x,), "v"


@production(2)
def _gather(d: Draft) -> Made:
    x = d.tensor(_ranked)
    places = [d.rng.choice([0, 0, 1]) for _ in range(d.rng.randint(1, 4))]
    if d.rng.random() < 0.3:
        return "tf.gather_nd({0}, {1})", (x, [[at] for at in places]), "v"
    return "tf.gather({0}, {1})", (x, places), "v"


@production()
def _scatter(d: Draft) -> Made:
    x = d.tensor(lambda v: _is_number(v) and _ranked(v))
    name = d.rng.choice(["add", "update"])
    return f"tf.tensor_scatter_nd_{name}({{0}}, [[0], [1]], {{0}}[:2])", (x,), "v"


@production(2)
def _join(d: Draft) -> Made:
    x = d.tensor(_ranked)
    dtype, rank = d.value(x.name).dtype, d.value(x.name).shape.rank
    y = d.tensor(lambda v: v.dtype == dtype and v.shape.rank == rank)
    how = d.rng.choice(["tf.concat([{0}, {1}], 0)", "tf.stack([{0}, {1}])", "tf.split({0}, 2)[0]"])
    return how, (x, y), "v"


@production(2)
def _matmul(d: Draft) -> Made:
    x = d.tensor(lambda v: _is_float(v) and v.shape.rank == 2)
    dtype = d.value(x.name).dtype
    y = d.tensor(lambda v: v.dtype == dtype and v.shape.rank == 2)
    how = d.rng.choice(["{0} @ {1}", "tf.matmul({0}, {1}, transpose_b=True)"])
    return how, (x, y), "v"


@production(2)
def _cond(d: Draft) -> Made:
    x = d.tensor(_is_float)
    other = d.rng.choice(["{0} * 2", "-{0}", "tf.zeros_like({0})"])
    return f"tf.cond(tf.reduce_sum({{0}}) > 0, lambda: {{0}} + 1, lambda: {other})", (x,), "v"


@production(1.5)
def _while(d: Draft) -> Made:
    x = d.tensor(_is_float)
    count = d.rng.choice([0, 1, 3])
    text = (
        "tf.while_loop(lambda i, a: i < {1}, lambda i, a: (i + 1, a * 0.5 + 1), "
        "(tf.constant(0), {0}))[1]"
    )
    return text, (x, count), "v"


@production()
def _size(d: Draft) -> Made:
    x = d.tensor(_ranked)
    how = d.rng.choice(["tf.shape({0})", "tf.size({0})", "tf.range(tf.shape({0})[0])"])
    return how, (x,), "v"


@production(0.7)
def _gradient(d: Draft) -> Made:
    x = d.tensor(lambda v: v.dtype in (tf.float32, tf.float64))
    return "tf.gradients(tf.reduce_sum(tf.sin({0}) * {0}), {0})[0] if not "\
        "tf.executing_eagerly() else tf.cos({0}) * {0} + tf.sin({0})", (x,), "v"  # fmt: skip


@production(4)
def _assign(d: Draft) -> Made:
    w = Name(d.rng.choice(d.variables))
    value = d.value(w.name)
    how = d.rng.choice(["assign", "assign_add", "assign_sub"])
    if d.rng.random() < 0.4:
        return f"{{0}}.{how}({{0}} * 2 - 1)", (w,), ""
    x = d.tensor(lambda v: v.dtype == value.dtype and v.shape == value.shape)
    return f"{{0}}.{how}({{1}})", (w, x), ""


@production(3)
def _assign_part(d: Draft) -> Made:
    w = Name(d.rng.choice(d.variables))
    return "{0}[{1}].assign({0}[{1}] + {2})", (w, _index(d, w), d.rng.choice([1, 2])), ""


@production()
def _scatter_variable(d: Draft) -> Made:
    w = Name(d.rng.choice(d.variables))
    how = d.rng.choice(["scatter_nd_add", "scatter_nd_update"])
    return f"{{0}}.{how}([[0]], {{0}}[1:2])", (w,), ""


@error
def _shapes(d: Draft) -> Made:
    x, y = d.tensor(), d.tensor()
    how = d.rng.choice(
        ["tf.reshape({0}, [7, 11])", "tf.concat([{0}, {1}], 0)", "{0} @ {1}", "{0} + {1}",
         "tf.stack([{0}, {1}])", "tf.reduce_sum({0}, 5)", "tf.transpose({0}, [1, 2, 0])"]
    )  # fmt: skip
    return how, (x, y), "v"


@error
def _asserted(d: Draft) -> Made:
    x = d.tensor(_is_real)
    how = d.rng.choice(
        ["tf.debugging.assert_less({0}, {0})", "tf.debugging.assert_equal({0}, {0} + 1)",
         "tf.debugging.Assert(tf.size({0}) > 10000, [{0}])"]
    )  # fmt: skip
    return how, (x,), ""
