"""Functions and operations of TensorFlow: tapes, arguments, graphs and running."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, execute
from tensorflow.python.eager.polymorphic_function import (
    function_type_utils,
    polymorphic_function,
)
from tensorflow.python.framework import function_def_to_graph, op_def_registry, ops
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import resource_variable_ops

from pjrt_bridge.errors import NotExportable

ConcreteFunction: Any = tf.types.experimental.ConcreteFunction
PolymorphicFunction: Any = polymorphic_function.Function


def is_recording() -> bool:
    """Whether a gradient tape or a forward accumulator is open in this thread."""
    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


def should_record(concrete: Any, tensors: Sequence[Any]) -> bool:
    """Whether an open tape wants gradients of a call of a concrete function.

    Args:
        concrete: the function; tapes learn that its variables are used, as in a call.
        tensors: its arguments, and what it holds.
    """
    for variable in concrete.graph.variables:
        resource_variable_ops.variable_accessed(variable)
    return is_recorded(tensors)


def is_recorded(tensors: Sequence[Any]) -> bool:
    """Whether an open tape wants gradients by any of these tensors."""
    return bool(pywrap_tfe.TFE_Py_TapeSetPossibleGradientTypes(list(tensors)))


runs_eagerly: Callable[[], bool] = tf.config.functions_run_eagerly
executing_eagerly: Callable[[], bool] = tf.executing_eagerly


def packer(concrete: Any) -> Callable[[Sequence[Any]], Any]:
    """What gives the flat results of a concrete function their structure."""
    structure = concrete.structured_outputs
    if isinstance(structure, tf.Tensor):
        return itemgetter(0)
    if type(structure) in (tuple, list) and all(isinstance(item, tf.Tensor) for item in structure):
        made: Callable[[Sequence[Any]], Any] = type(structure)
        return made
    packed: Callable[[Sequence[Any]], Any] = concrete.function_type.pack_output
    return packed


def arguments(
    function: Any, concrete: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """The flat tensors that a call gives one of a function's concrete functions.

    Raises:
        TypeError: as TensorFlow does for arguments that the function does not take.
    """
    bound = function_type_utils.bind_function_inputs(
        tuple(args), dict(kwargs), function._function_type, function._default_values
    )
    held = concrete.function_type
    found: list[Any] = held.unpack_inputs(held.bind(*bound.args, **bound.kwargs))
    return found


def called(graph: Any, name: str) -> Any:
    """The graph of a function that a graph's operation calls.

    Raises:
        NotExportable: it calls functions of TensorFlow 1, which cannot be read.
    """
    found = getattr(_known_function(graph, name), "graph", None)
    if found is not None:
        return found
    definition = context.context().get_function_def(name)
    try:
        # Functions of TensorFlow 1 are types of operations, which the graph knows.
        with graph.as_default():
            return function_def_to_graph.function_def_to_graph(
                definition, propagate_device_spec=True
            )
    except (RuntimeError, ValueError) as error:
        raise NotExportable(f"function {name!r} cannot be read: {error}") from error


def _known_function(graph: Any, name: str) -> Any:
    """What a graph, or one around it, knows by a name; None where they do not know it."""
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function
        graph = getattr(graph, "outer_graph", None)
    return None


def callee(made: Any) -> str | None:
    """The name of the function that an operation calls and does nothing else; None if it does."""
    if made.type in ("PartitionedCall", "StatefulPartitionedCall"):
        return str(made.get_attr("f").name)
    # Functions of TensorFlow 1 are types of operations in their graph.
    return str(made.type) if op_def_registry.get(made.type) is None else None


def functions_of(made: Any) -> list[str]:
    """Names of the functions that an operation refers to: what it calls, a loop's, a branch's."""
    found = [] if op_def_registry.get(made.type) is not None else [str(made.type)]
    for value in made.node_def.attr.values():
        found += [item.name for item in (value.func, *value.list.func) if item.name]
    return found


def for_xla(function: Any) -> Any:
    """Another `tf.function` of the same Python function, traced in the context of XLA.

    Its concrete functions are to be read, not to be run: TensorFlow would compile them.
    """
    made = function._clone(None)
    made._jit_compile = True
    return made


def deferred(graph: Any) -> int:
    """How many arguments of a function TensorFlow finds anew for each call."""
    return len(getattr(graph, "deferred_external_captures", ()))


def traceback(operation: Any) -> list[Any]:
    """The frames in which an operation was made, innermost last; empty where that is not known."""
    try:
        return list(operation.traceback)
    except (AttributeError, ValueError, TypeError):
        return []


def attributes(made: Any) -> tuple[Any, ...] | None:
    """The attributes of an operation as `execute` takes them; None where that cannot be said."""
    found: list[Any] = []
    for attribute in made.op_def.attr:
        value = made.node_def.attr[attribute.name]
        if attribute.type.removeprefix("list(").rstrip(")") in ("func", "tensor"):
            return None
        if attribute.type.startswith("list("):
            kind = _ATTRIBUTE_FIELDS[attribute.type[5:-1]]
            items = [_plain(item) for item in getattr(value.list, kind)]
            found += [attribute.name, items]
        else:
            kind = _ATTRIBUTE_FIELDS[attribute.type]
            found += [attribute.name, _plain(getattr(value, kind))]
    return tuple(found)


_ATTRIBUTE_FIELDS = {
    "bool": "b",
    "float": "f",
    "int": "i",
    "shape": "shape",
    "string": "s",
    "type": "type",
}


def _plain(value: Any) -> Any:
    if hasattr(value, "unknown_rank"):
        return None if value.unknown_rank else [item.size for item in value.dim]
    return value


def run(type: str, inputs: Sequence[Any], attributes: tuple[Any, ...], outputs: int) -> list[Any]:
    """Run one operation on eager tensors.

    A concrete function is one, too: by its name, with `CALLED` and its captured inputs.

    Raises:
        tf.errors.OpError: as TensorFlow does.
    """
    found: list[Any] = execute.execute(type, outputs, list(inputs), attributes, _context())
    return found


CALLED = ("executor_type", "", "config_proto", b"")
"""Attributes of a concrete function that is run."""
_context = context.context


def capture(tensor: Any) -> Any:
    """An eager tensor as a captured input of the function that is being traced."""
    graph = ops.get_default_graph()
    assert isinstance(graph, FuncGraph)
    return graph.capture(tensor)


def copy(made: Any, inputs: Sequence[Any], before: Sequence[Any], name: str) -> Any:
    """An operation like another in the function that is being traced.

    Args:
        made: the other one, whose graph knows the functions that it refers to.
        inputs: tensors, of that function or eager ones, which become captured inputs.
        before: operations that run before it.
        name: of the copy.
    """
    graph = ops.get_default_graph()
    attributes = {
        key: value for key, value in made.node_def.attr.items() if key not in _OWN_ATTRIBUTES
    }
    for value in attributes.values():
        for function in (value.func, *value.list.func):
            if function.name:
                known = _known_function(made.graph, function.name)
                if known is not None:
                    graph._add_function_recursive(known)
    with graph.control_dependencies(list(before)):
        return graph._create_op_internal(
            made.type,
            list(inputs),
            [tensor.dtype for tensor in made.outputs],
            [tensor.dtype.base_dtype for tensor in made.inputs],
            name,
            attributes,
            made.op_def,
        )


_OWN_ATTRIBUTES = frozenset({"_class", "_gradient_op_type", "_output_shapes"})
"""Attributes that are about the graph in which an operation was made."""
