"""Faults that are planted into the bridge of TensorFlow, to see that they are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import tensorflow as tf

from pjrt_bridge.tf_interop import compat
from pjrt_bridge.tf_interop.compiled import CompiledFunction
from pjrt_bridge.tf_interop.function import Function
from tests.differential.faults.registry import Registry

FAULTS = Registry()

_ASSIGNED = ("tf.assign", "tf.assign_part", "tf.scatter_variable")


@contextmanager
def _each(change: Callable[[Any], Any]) -> Iterator[None]:
    """Change each tensor among the results of compiled functions."""
    run = CompiledFunction.run

    def changed(self: CompiledFunction, arguments: Any) -> list[Any]:
        return [change(item) if tf.is_tensor(item) else item for item in run(self, arguments)]

    # The fast path goes past what is called here.
    with (
        mock.patch.object(CompiledFunction, "run", changed),
        mock.patch.object(CompiledFunction, "fast_path", None),
    ):
        yield


@FAULTS.fault
def lost_element() -> Iterator[None]:
    """The first element of a larger result is lost."""

    def change(result: Any) -> Any:
        size = int(tf.size(result))
        if size < 4 or result.dtype.is_bool:
            return result
        first = tf.reshape(tf.one_hot(0, size, True, False, dtype=tf.bool), result.shape)
        return tf.where(first, tf.zeros_like(result), result)

    with _each(change):
        yield


@FAULTS.fault
def narrowed_type() -> Iterator[None]:
    """Results in double precision come in single precision."""
    with _each(lambda result: tf.cast(result, "float32") if result.dtype == tf.float64 else result):
        yield


@FAULTS.fault
def lost_dimension() -> Iterator[None]:
    """Results of two dimensions come as one."""
    with _each(lambda result: tf.reshape(result, [-1]) if result.shape.rank == 2 else result):
        yield


@FAULTS.fault_of(*_ASSIGNED)
def ignored_assignment() -> Iterator[None]:
    """Variables of two dimensions keep their values."""
    assign = compat.assign

    def changed(variable: Any, value: Any) -> None:
        if len(value.shape) < 2:
            assign(variable, value)

    with mock.patch.object(compat, "assign", changed):
        yield


@FAULTS.fault_of(*_ASSIGNED)
def stale_assignment() -> Iterator[None]:
    """Variables get the first value of their shape and type again."""
    assign = compat.assign
    first: dict[Any, Any] = {}

    def changed(variable: Any, value: Any) -> None:
        key = (tuple(value.shape), value.dtype)
        assign(variable, first.setdefault(key, value))

    with mock.patch.object(compat, "assign", changed):
        yield


@contextmanager
def _raising(change: Callable[[Exception], Any]) -> Iterator[None]:
    """Change what compiled functions do where they raise."""
    call = Function.__call__

    def changed(self: Function, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        except Exception as error:
            return change(error)

    with mock.patch.object(Function, "__call__", changed):
        yield


@FAULTS.fault_of("tf.errors.shapes", "tf.errors.asserted")
def other_error() -> Iterator[None]:
    """What raises, raises another kind of error."""

    def change(error: Exception) -> Any:
        raise LookupError(str(error)) from error

    with _raising(change):
        yield


@FAULTS.fault_of("tf.errors.shapes", "tf.errors.asserted")
def swallowed_error() -> Iterator[None]:
    """What raises gives nothing instead."""
    with _raising(lambda error: None):
        yield
