"""Tensors and variables of TensorFlow: their memory, values and shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from pjrt_bridge.runtime.dispatch.plans import Capsules
from pjrt_bridge.tf_interop.compat.programs import eagerly

EagerTensor: Any = ops.EagerTensor


def capsules() -> Capsules:
    """How TensorFlow's tensors are read and made in C."""
    return Capsules(EagerTensor, to_capsule, from_capsule)


def to_capsule(tensor: Any) -> Any:
    """A DLPack capsule over a tensor's memory; None for types whose export aborts the process."""
    if tensor._datatype_enum() in _UNSAFE:
        return None
    return pywrap_tfe.TFE_ToDlpackCapsule(tensor)


_UNSAFE = frozenset(
    dtype.as_datatype_enum for dtype in (tf.string, tf.resource, tf.variant)
) | frozenset(
    dtype.as_datatype_enum for dtype in (tf.qint8, tf.qint16, tf.qint32, tf.quint8, tf.quint16)
)


def from_capsule(capsule: Any) -> Any:
    """A tensor over a capsule's memory, which has to begin at a multiple of 64 bytes.

    TensorFlow takes other memory, too, and aborts the process when it uses it.
    """
    current = context.context()
    # There may be no tensor yet.
    current.ensure_initialized()
    return pywrap_tfe.TFE_FromDlpackCapsule(capsule, current._handle)


def value_of(tensor: Any) -> bytes:
    """The bytes of a small tensor's elements, to tell it from others of its kind."""
    found: bytes = tensor.numpy().tobytes()
    return found


def reader(variables: Sequence[Any]) -> Callable[[], list[Any]]:
    """A function that gives the values of variables (their handles), over the same memory."""
    if not variables:
        return list
    types = [handle_shapes(handle)[0][1].as_datatype_enum for handle in variables]
    return partial(
        pywrap_tfe.TFE_Py_Execute,
        context.context()._handle,
        None,
        "_ReadVariablesOp",
        list(variables),
        ("N", len(types), "dtypes", types),
        len(types),
    )


def has_open_shape(held: Any) -> bool:
    """Whether what a function holds is a variable that may change its shape."""
    return is_variable(held) and not handle_shapes(held)[0][0].is_fully_defined()


def is_variable(held: Any) -> bool:
    """Whether what a function holds is a variable's handle."""
    return bool(held.dtype == tf.resource) and bool(handle_shapes(held))


def assign(variable: Any, value: Any) -> None:
    """Give a variable (its handle) a new value, which it takes without a copy."""
    pywrap_tfe.TFE_Py_FastPathExecute(
        context.context(), "AssignVariableOp", None, variable, value, "validate_shape", False
    )


def constant(made: Any) -> Any:
    """The value of a graph's constant as an eager tensor."""
    with eagerly():
        return tf.constant(tf.make_ndarray(made.get_attr("value")), made.outputs[0].dtype)


def handle_shapes(handle: Any) -> list[tuple[Any, Any]]:
    """Shape and type of what a resource handle leads to, where it is a variable."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set:
        return []
    return [
        (tf.TensorShape(item.shape), tf.dtypes.as_dtype(item.dtype)) for item in data.shape_and_type
    ]


def constant_value(tensor: Any) -> Any:
    """What a graph's tensor always is, as a NumPy array; None where that is not known."""
    return tf.get_static_value(tensor)
