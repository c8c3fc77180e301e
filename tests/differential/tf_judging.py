"""Runs a TensorFlow program as `tf.function` and through the bridge, and compares."""

from __future__ import annotations

import linecache
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from pjrt_bridge.tf_interop import function
from tests.differential.tf_draft import TfProgram, numbers

_TOLERANCE = {"float32": 4e-6, "float64": 1e-11, "complex64": 4e-6, "bfloat16": 2e-2}


@dataclass
class RunResults:
    """What a run gave.

    Attributes:
        results: for each call, structure and leaves, or the exception.
        variables: their values after each call.
    """

    results: list[Any] = field(default_factory=list)
    variables: list[list[np.ndarray[Any, Any]]] = field(default_factory=list)


def judge(program: TfProgram, placement: str = "device") -> list[str]:
    """What differs between TensorFlow and the bridge."""
    expected = observe(program, "")
    return _differences(observe(program, placement), expected)


def raised(program: TfProgram) -> bool:
    """Whether TensorFlow itself raises."""
    return any(isinstance(item, Exception) for item in observe(program, "").results)


def observe(program: TfProgram, placement: str) -> RunResults:
    """Run all calls; without a placement in TensorFlow."""
    source = program.source()
    name = f"<tensorflow {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace: dict[str, Any] = {"tf": tf, "numbers": numbers}
    exec(compile(source, name, "exec"), namespace)
    variables = [namespace[statement.target] for statement in program.variables]
    options: dict[str, Any] = {}
    if program.symbolic:
        options["input_signature"] = [
            tf.TensorSpec([size if isinstance(size, int) else None for size in shape], dtype)
            for shape, dtype in program.arguments
        ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if placement:
            run = function(namespace["f"], placement=placement, **options)
        else:
            run = tf.function(namespace["f"], **options)
        seen = RunResults()
        for row in program.calls:
            try:
                result = run(*namespace["arguments"](*row))
                leaves = tf.nest.flatten(result)
                seen.results.append(
                    (str(tf.nest.map_structure(lambda _: 0, result)), [*map(_leaf, leaves)])
                )
            except Exception as error:
                seen.results.append(error)
            seen.variables.append([variable.numpy() for variable in variables])
    return seen


def _array(value: np.ndarray[Any, Any]) -> Any:
    return (value.dtype.name, value.shape, value)


def _leaf(value: Any) -> Any:
    if tf.is_tensor(value):
        return (value.dtype.name, tuple(value.shape), value.numpy().copy())
    return value


def _differences(found: RunResults, expected: RunResults) -> list[str]:
    lines = []
    for number, (one, other) in enumerate(zip(found.results, expected.results, strict=True)):
        lines += [f"call {number}: {text}" for text in _call(one, other)]
    for number, (ours, theirs) in enumerate(zip(found.variables, expected.variables, strict=True)):
        for at, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            text = _values(
                (left.dtype.name, left.shape, left), (right.dtype.name, right.shape, right)
            )
            if text:
                lines.append(f"call {number}: variable {at}: {text}")
    return lines


def _call(one: Any, other: Any) -> list[str]:
    if isinstance(other, Exception):
        if isinstance(one, Exception):
            alike = isinstance(one, type(other)) or isinstance(other, type(one))
            return [] if alike else [f"other exception: {one!r:.300}, not {other!r:.300}"]
        return [f"missing exception: {type(other).__name__}: {str(other)[:200]}"]
    if isinstance(one, Exception):
        return [f"exception: {type(one).__name__}: {' '.join(str(one).split())[:300]}"]
    if one[0] != other[0]:
        return [f"structure {one[0]}, not {other[0]}"]
    return [
        f"result {at}: {text}"
        for at, pair in enumerate(zip(one[1], other[1], strict=True))
        if (text := _values(*pair))
    ]


def _values(one: Any, other: Any) -> str:
    if not isinstance(other, tuple) or not isinstance(one, tuple):
        return "" if type(one) is type(other) and one == other else f"{one!r}, not {other!r}"
    if one[:2] != other[:2]:
        return f"{one[:2]}, not {other[:2]}"
    tolerance = _TOLERANCE.get(other[0])
    left, right = one[2], other[2]
    if tolerance is None:
        same = np.array_equal(left, right)
        return "" if same else f"{left.tolist()}, not {right.tolist()}"[:300]
    wide = np.complex128 if np.iscomplexobj(right) else np.float64
    left, right = np.asarray(left).astype(wide), np.asarray(right).astype(wide)
    finite = np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return f"{left.tolist()}, not {right.tolist()}"[:300]
    largest = np.abs(right[finite]).max(initial=0)
    far = np.abs(left[finite] - right[finite]).max(initial=0)
    return "" if far <= tolerance * largest else f"differs by {far} of {largest}"
