"""A function of TensorFlow as an operator of torch.

    @torch_op
    def normalized(x):
        return (x - tf.reduce_mean(x)) / tf.math.reduce_std(x)

It has to compile as one program. In a graph of `torch.compile(backend="pjrt")`, and in an exported
model, its StableHLO is a part of the program of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial, wraps
from itertools import compress
from typing import Any

import tensorflow as tf

from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ProgramError, UnsupportedDtype
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.tf_interop import dtypes
from pjrt_bridge.tf_interop.export import export
from pjrt_bridge.torch_interop.foreign.calls import as_operator
from pjrt_bridge.torch_interop.foreign_functions import (
    ArrayFunction,
    ArraySpec,
    Derivative,
    ForeignFunction,
)

_KEPT_PROGRAMS = 64


def torch_op(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
) -> Any:
    """Make a function of TensorFlow callable with tensors of torch.

    Arguments and results are tensors, nested in tuples, named tuples, lists, dicts and None;
    numbers of Python are tensors without dimensions. Gradients are those of `tf.GradientTape`, for
    which the function is computed again.

    Args:
        function: a `tf.function`, or a Python function; pure. It holds no variables: they are
            arguments.
        static_argnums: positions of arguments that are no tensors; the function is traced for each
            of their values, which must be hashable.
        static_argnames: the same, by name.

    Returns:
        A function of the same arguments; without `function` a decorator.

    Raises:
        OptionError: a static argument that the function does not have.
    """
    if function is None:
        return partial(torch_op, static_argnums=static_argnums, static_argnames=static_argnames)
    return as_operator(
        _converted(getattr(function, "python_function", function)),
        lambda flat, label, _: TensorFlowFunction(flat, label),
        framework="tf",
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )


def _converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with conditions and loops over tensors as operations, where that is possible."""
    try:
        converted = tf.autograph.to_graph(function)
    except Exception:
        # It needs source code, which what is typed into an interpreter lacks.
        return function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return converted(*args, **kwargs)

    return call


class TensorFlowFunction(ForeignFunction):
    """A function of TensorFlow over tensors in order.

    Args:
        function: pure; traced by TensorFlow.
        label: what users read.
    """

    def __init__(self, function: ArrayFunction, label: str) -> None:
        super().__init__(label)
        self._traced = tf.function(lambda *tensors: tuple(function(tensors, ())), autograph=False)
        self._function = function
        self._exported = lru_cache(_KEPT_PROGRAMS)(self._export)
        self._gradients: dict[Any, TensorFlowFunction] = {}

    def results(self, arguments: Sequence[ArraySpec], sizes: Sequence[Any]) -> Sequence[ArraySpec]:
        """See `ForeignFunction.results`; sizes become numbers."""
        found = self._traced.get_concrete_function(*map(_described, arguments))
        for item in found.outputs:
            if not item.shape.is_fully_defined():
                raise ProgramError(
                    f"{self.label}: found a result of shape {item.shape}, whose sizes depend on "
                    "data, expected one that follows from the arguments' shapes"
                )
        return [
            ArraySpec(tuple(item.shape), dtypes.of(item.dtype, f"a result of {self.label}"))
            for item in found.outputs
        ]

    def program(
        self, arguments: Sequence[TensorType], sizes: Sequence[int], platform: str
    ) -> Program:
        """See `ForeignFunction.program`."""
        return self._exported(tuple(arguments))

    def _export(self, arguments: tuple[TensorType, ...]) -> Program:
        found = export(
            self._traced, *(_described(ArraySpec(item.shape, item.dtype)) for item in arguments)
        )
        count = len(found.signature.parameters)
        if count != len(arguments):
            raise ProgramError(
                f"{self.label}: found {count - len(arguments)} variables or large constants "
                "that the function holds, expected a function of its arguments alone"
            )
        return found

    def derivative(self, arguments: Sequence[ArraySpec], wanted: Sequence[bool]) -> Derivative:
        """See `ForeignFunction.derivative`; the function is computed again."""
        again = self._gradients_of(tuple(wanted))
        reads = tuple(
            at
            for at, spec in enumerate(self.results(arguments, ()))
            if spec.dtype.is_float or spec.dtype.is_complex
        )
        return Derivative(again, (), tuple(range(len(arguments))), reads, again)

    def _gradients_of(self, wanted: tuple[bool, ...]) -> TensorFlowFunction:
        if wanted not in self._gradients:

            def gradients(arrays: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
                given, read = arrays[: len(wanted)], arrays[len(wanted) :]
                chosen = list(compress(given, wanted))
                with tf.GradientTape() as tape:
                    tape.watch(chosen)
                    results = self._function(given, ())
                floats = [
                    item for item in results if item.dtype.is_floating or item.dtype.is_complex
                ]
                found: list[Any] = tape.gradient(
                    floats, chosen, list(read), unconnected_gradients="zero"
                )
                return found

            self._gradients[wanted] = TensorFlowFunction(gradients, f"{self.label}.gradients")
        return self._gradients[wanted]


def _described(spec: ArraySpec) -> Any:
    return tf.TensorSpec(tuple(map(int, spec.shape)), _name_of(spec.dtype))


def _name_of(dtype: DType) -> str:
    found = dtypes.name_of(dtype)
    if found is None:
        raise UnsupportedDtype(f"an argument: found type {dtype.name}, which TensorFlow lacks")
    return found
