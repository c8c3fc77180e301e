"""Elementwise expressions, computed by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import erf
from typing import Any

import ml_dtypes
import numpy as np

from pjrt_bridge.stablehlo.kernel_attributes import Expression, ExpressionRead

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.logical_and,
    "ceil": np.ceil,
    "cosine": np.cos,
    "divide": np.divide,
    "equal": np.equal,
    "erf": np.vectorize(erf, otypes=[np.float64]),
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "floor": np.floor,
    "less": np.less,
    "less_equal": np.less_equal,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negate": np.negative,
    "not": np.logical_not,
    "not_equal": np.not_equal,
    "or": np.logical_or,
    "power": np.power,
    "round": lambda x: x.astype(ml_dtypes.bfloat16),
    "round_nearest_even": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "select": lambda pred, x, y: np.where(pred != 0, x, y),
    "sign": np.sign,
    "sine": np.sin,
    "sqrt": np.sqrt,
    "subtract": np.subtract,
    "tanh": np.tanh,
}


def positions(read: ExpressionRead) -> Any:
    """The elements that are read, one after the other."""
    found = np.array([read.first])
    for size, step in read.dims:
        found = found[:, None] + np.arange(size) * step
        found = found.reshape(-1)
    return found


def computed(expression: Expression, arrays: Sequence[Any]) -> Any:
    """The first result; see `all_computed`."""
    return all_computed(expression, arrays)[0]


def all_computed(expression: Expression, arrays: Sequence[Any]) -> Sequence[Any]:
    """The results, in float64 between the steps."""
    values: list[Any] = []
    for step in expression.steps:
        if step.operation == "read":
            at = int(step.number)
            flat = np.asarray(arrays[at]).reshape(-1)
            values.append(flat[positions(expression.reads[at])].astype(np.float64))
        elif step.operation == "number":
            values.append(np.float64(step.number))
        else:
            with np.errstate(all="ignore"):
                found = FUNCTIONS[step.operation](*(values[item] for item in step.operands))
            values.append(np.asarray(found).astype(np.float64))
    return [
        np.broadcast_to(values[result.step], expression.size).reshape(result.shape)
        for result in expression.results
    ]
