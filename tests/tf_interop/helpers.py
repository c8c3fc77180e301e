"""The steps of compiling a TensorFlow function, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.tf_interop.capture import CapturedFunction, FlatOperation, capture
from pjrt_bridge.tf_interop.constants import ConstantInputs, needs
from pjrt_bridge.tf_interop.placement import Placement
from pjrt_bridge.tf_interop.split import Part, split


def spec(*shape: int | None, dtype: Any = tf.float32) -> tf.TensorSpec:
    """An argument of this shape."""
    return tf.TensorSpec(shape, dtype)


def captured(fn: Callable[..., Any], *given: Any) -> CapturedFunction:
    """A function's operations."""
    return capture(tf.function(fn).get_concrete_function(*given))


def types(found: CapturedFunction) -> list[str]:
    """What the operations are, in their order."""
    return [operation.type for operation in found.operations]


def of_type(found: CapturedFunction, type: str) -> FlatOperation:
    """The only operation of a type."""
    (operation,) = [operation for operation in found.operations if operation.type == type]
    return operation


def before(found: CapturedFunction, operation: FlatOperation) -> list[str]:
    """Names of the operations whose effects come before one."""
    return [found.operations[index].name for index in operation.after]


def fallback_reasons(found: CapturedFunction) -> Mapping[str, FallbackReason]:
    """Why operations are on the host, by their names."""
    placed = Placement(found, {}).fallback_reasons()
    return {
        found.operations[index].name: fallback_reason for index, fallback_reason in placed.items()
    }


@dataclass(frozen=True)
class Divided:
    """A function in parts."""

    captured: CapturedFunction
    parts: Sequence[Part]

    @property
    def shown(self) -> list[tuple[str, list[str]]]:
        """Each part's place, and what is in it beside constants."""
        return [
            (
                "device" if part.on_device else "host",
                [
                    self.captured.operations[index].type
                    for index in part.operations
                    if self.captured.operations[index].type != "Const"
                ],
            )
            for part in self.parts
        ]

    def needs(self) -> list[ConstantInputs]:
        """What each part has to know to be compiled."""
        return [needs(self.captured, part) for part in self.parts]


def divided(fn: Callable[..., Any], *given: Any) -> Divided:
    """A function, captured, placed and split."""
    found = captured(fn, *given)
    return Divided(found, split(found, Placement(found, {}).fallback_reasons()).parts)


def on_host(value: Any) -> Any:
    """The same value, by way of an operation that only the host does."""
    found = tf.io.parse_tensor(tf.io.serialize_tensor(value), value.dtype)
    return tf.ensure_shape(found, value.shape)


def numbers(*shape: int, seed: int = 0) -> Any:
    """Normal numbers in a tensor that TensorFlow allocated."""
    drawn = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return tf.identity(drawn)


def address(tensor: Any) -> int:
    """Where a tensor lies."""
    return int(tensor._numpy().__array_interface__["data"][0])
