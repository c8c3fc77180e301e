"""StableHLO of functions of TensorFlow, and in them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels

from pjrt_bridge.errors import NotExportable

_XLA = "XLA_CPU_JIT"


def call_module(module: bytes, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
    """The results of a StableHLO program, as one operation of TensorFlow.

    Args:
        module: a portable artifact.
        inputs: its arguments.
        outputs: a `tf.TensorSpec` for each result.
    """
    found: Sequence[Any] = xla.call_module(
        list(inputs),
        version=_CALL_MODULE_VERSION,
        module=module,
        Tout=[item.dtype for item in outputs],
        Sout=[item.shape for item in outputs],
        platforms=("CPU",),
        # The program is for every platform.
        disabled_checks=("platform",),
    )
    return found


_CALL_MODULE_VERSION = 9
"""Of how arguments are passed: this one has the checks by name, and no symbolic sizes."""


def stablehlo(function: Any, arguments: Sequence[Any]) -> bytes:
    """MLIR bytecode of a concrete function: StableHLO with attributes and operations of MHLO.

    Args:
        function: whose captured inputs follow the arguments.
        arguments: a TensorSpec of known shape for each.

    Raises:
        NotExportable: XLA cannot compile it; the message names operation and node.
    """
    try:
        found = context.context().get_compiler_ir(
            device_name="/job:localhost/replica:0/task:0/device:CPU:0",
            platform_name=None,
            function_name=function.name,
            flat_args=list(arguments),
            captured_inputs=function.captured_inputs,
            stage="stablehlo_serialized",
        )
    except (tf.errors.OpError, ValueError) as error:
        raise NotExportable(str(error)) from error
    return bytes(found)


_loading = threading.Lock()


def xla_kernels() -> Mapping[str, Sequence[Mapping[str, frozenset[int]]]]:
    """For each operation that XLA compiles its kernels: allowed types by attribute."""
    with _loading:
        return _xla_kernels()


@cache
def _xla_kernels() -> Mapping[str, Sequence[Mapping[str, frozenset[int]]]]:
    # They are registered by the first compilation.
    with eagerly():
        first = tf.function(tf.negative).get_concrete_function(tf.TensorSpec([], tf.float32))
        stablehlo(first, [tf.TensorSpec([], tf.float32)])
    found: dict[str, list[Mapping[str, frozenset[int]]]] = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        if kernel.device_type == _XLA:
            found.setdefault(kernel.op, []).append(
                {item.name: frozenset(item.allowed_values.list.type) for item in kernel.constraint}
            )
    return found


@contextmanager
def eagerly() -> Iterator[None]:
    """Outside of whatever function is being traced."""
    with tf.init_scope():
        yield
