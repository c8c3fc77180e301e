"""A second trace of a function, as XLA's compiler needs it.

TensorFlow traces gradients of loops and branches in one of two ways. What it runs itself keeps the
intermediate values of a loop in lists without a largest size, and those of a branch in optionals,
which XLA has not. In the context of XLA the lists have as many elements as the loop has iterations,
and a branch gives all of its values. A function whose loops or branches would stay on the host is
traced again in that context, and the trace that leaves fewer operations to the host is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.tf_interop import compat
from pjrt_bridge.tf_interop.capture import CapturedFunction

_BRANCHES_AND_LOOPS = frozenset({"Case", "If", "While"})
_LISTS = ("EmptyTensorList", "TensorList")
_UPDATE = "XlaDynamicUpdateSlice"
"""In the context of XLA the gradient of `tf.slice`; TensorFlow has no kernel for it."""


def could_help(reasons: Iterable[FallbackReason]) -> bool:
    """Whether loops or branches are among what stays on the host."""
    return any(
        _has_body(reason.operator) or reason.operator.startswith(_LISTS) for reason in reasons
    )


def has_loops(captured: CapturedFunction) -> bool:
    """Whether a function has loops or branches."""
    return any(_has_body(operation.type) for operation in captured.operations)


def _has_body(type: str) -> bool:
    return type.removeprefix("Stateless") in _BRANCHES_AND_LOOPS


def runs_in_tensorflow(captured: CapturedFunction) -> bool:
    """Whether TensorFlow can run each operation of a trace, by itself or as `rewritten`."""
    seen: set[str] = set()
    return all(
        not is_rewritten(inner)
        for operation in captured.operations
        for inner in _inside(operation.made, seen)
    )


def _inside(made: Any, seen: set[str]) -> Iterator[Any]:
    """The operations in the bodies of a loop or a branch."""
    for name in compat.functions_of(made):
        if name in seen:
            continue
        seen.add(name)
        try:
            found = compat.called(made.graph, name).get_operations()
        except NotExportable:
            continue
        for inner in found:
            yield inner
            yield from _inside(inner, seen)


def is_rewritten(made: Any) -> bool:
    """Whether an operation is one that only XLA has."""
    return bool(made.type == _UPDATE)


def rewritten(made: Any, inputs: list[Any]) -> list[Any] | None:
    """The results of an operation that only XLA has; None for other operations.

    Args:
        made: the operation.
        inputs: tensors of the function that is being traced.
    """
    if not is_rewritten(made):
        return None
    operand, update, start = inputs
    room = tf.shape(operand, out_type=start.dtype) - tf.shape(update, out_type=start.dtype)
    # XLA moves a slice that does not fit ("dynamic_update_slice" of StableHLO).
    first = tf.clip_by_value(start, tf.zeros_like(room), room)
    around = tf.stack([first, room - first], axis=1)
    inside = tf.pad(tf.ones_like(update, tf.bool), around)
    return [tf.where(inside, tf.pad(update, around), operand)]
