"""A captured function as the neutral graph of mixed execution, and its segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from pjrt_bridge.mixed.graph import Graph, Node
from pjrt_bridge.mixed.partition import Segment, partition
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.tf_interop.capture import CapturedFunction, FlatOperation

_VIEWS = frozenset(
    {
        "EmptyTensorList",
        "ExpandDims",
        "Fill",
        "Rank",
        "Reshape",
        "Shape",
        "ShapeN",
        "Size",
        "Squeeze",
        "TensorListFromTensor",
        "TensorListReserve",
    }
)
"""Operations that cost less than moving their results."""
_INDEXING = frozenset({"ConcatV2", "Pack", "Slice", "StridedSlice", "Unpack"})
"""Operations that are calculations with sizes wherever they are on vectors of integers."""
_SMALL = 16
"""Operations on so few integers are calculations with sizes and axes."""


@dataclass(frozen=True, eq=False)
class Part:
    """One segment of a function.

    Attributes:
        on_device: where it runs.
        operations: indices into the captured function, in running order.
        inputs: values that a call, or a segment before, brings.
        places: of these among the inputs of the neutral segment.
        held: values that the function holds: variables, tables, constants.
        outputs: values that later segments or the caller need.
        fallback_reasons: why it is on the host, once for each operation that cannot leave it.
        reads: indices of the segments whose results it takes.
        takes_arguments: whether it reads what the call brings.
        gives_results: whether the caller gets results of it.
    """

    on_device: bool
    operations: tuple[int, ...]
    inputs: tuple[int, ...]
    places: tuple[int, ...]
    held: tuple[int, ...]
    outputs: tuple[int, ...]
    fallback_reasons: tuple[FallbackReason, ...]
    reads: tuple[int, ...]
    takes_arguments: bool
    gives_results: bool


@dataclass(frozen=True)
class Split:
    """A function in parts.

    Attributes:
        graph: neutral; its inputs are the arguments and what the function holds.
        segments: of it, in running order.
        parts: the same with what the framework needs.
    """

    graph: Graph
    segments: Sequence[Segment]
    parts: Sequence[Part]


def operators(captured: CapturedFunction, part: Sequence[int]) -> Counter[str]:
    """How often operations occur, without constants."""
    types = (captured.operations[index].type for index in part)
    return Counter(type for type in types if type != "Const")


def split(captured: CapturedFunction, reasons: Mapping[int, FallbackReason]) -> Split:
    """Split a function by where its operations can run.

    Args:
        captured: the function.
        reasons: for operations that cannot run on the device, by index, the reason.
    """
    found = dict(reasons)
    if found:
        found.update(_host_variables(captured, found))
    while True:
        neutral, segments = _divided(captured, found)
        torn = _torn_lists(captured, neutral, segments)
        if not torn:
            return _parts(captured, neutral, segments)
        found.update(torn)


def _divided(
    captured: CapturedFunction, reasons: Mapping[int, FallbackReason]
) -> tuple[Graph, Sequence[Segment]]:
    written = {
        value
        for operation in captured.operations
        if operation.type != "ReadVariableOp"
        for value in operation.inputs
    }
    nodes = [
        Node(
            name=operation.name,
            inputs=operation.inputs,
            outputs=operation.outputs,
            fallback_reason=reasons.get(index),
            after=operation.after,
            cheap=_is_cheap(operation, written),
            work=0 if _is_light(operation) else 1,
        )
        for index, operation in enumerate(captured.operations)
    ]
    graph = Graph((*captured.arguments, *captured.captures), nodes, _distinct(captured.outputs))
    found = partition(graph, min_segment=1 if reasons else 0)
    return found.graph, found.segments


def _distinct(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(values))


def _is_cheap(operation: FlatOperation, written: set[int]) -> bool:
    if operation.effect:
        return False
    if operation.type == "ReadVariableOp":
        # When it is read is not known.
        return operation.inputs[0] not in written
    return operation.type == "Const" or operation.type in _VIEWS


def _is_light(operation: FlatOperation) -> bool:
    if operation.type in _VIEWS or operation.type in ("Const", "ReadVariableOp"):
        return True
    tensors = (*operation.made.inputs, *operation.made.outputs)
    if operation.type in _INDEXING:
        return all(map(_is_vector_of_integers, tensors))
    return all(_is_light_tensor(tensor) for tensor in tensors)


def _is_vector_of_integers(tensor: Any) -> bool:
    return bool(tensor.dtype.is_integer) and tensor.shape.rank in (0, 1)


def _is_light_tensor(tensor: Any) -> bool:
    """Whether it is a scalar, or a few integers such as sizes."""
    count = _elements(tensor)
    return bool(
        tensor.dtype == tf.resource or count <= 1 or (tensor.dtype.is_integer and count <= _SMALL)
    )


def _elements(tensor: Any) -> float:
    count = tensor.shape.num_elements()
    return float("inf") if count is None else count


def _host_variables(
    captured: CapturedFunction, reasons: Mapping[int, FallbackReason]
) -> dict[int, FallbackReason]:
    """Reads and updates of variables that have to do with the host alone."""
    found: dict[int, FallbackReason] = {}
    readers: dict[int, list[int]] = {}
    maker: dict[int, int] = {}
    for index, operation in enumerate(captured.operations):
        for value in operation.inputs:
            readers.setdefault(value, []).append(index)
        maker.update(dict.fromkeys(operation.outputs, index))
    results = set(captured.outputs)
    for index, operation in enumerate(captured.operations):
        if index in reasons:
            continue
        if operation.type == "ReadVariableOp":
            value = operation.outputs[0]
            users = readers.get(value, [])
            alone = value not in results and users and all(user in reasons for user in users)
            reason = "only the host reads it"
        elif operation.type == "AssignVariableOp":
            alone = maker.get(operation.inputs[1], -1) in reasons
            reason = "the host made the value"
        else:
            continue
        if alone:
            found[index] = FallbackReason(operation.type, reason, "small", operation.source)
    return found


def _torn_lists(
    captured: CapturedFunction, graph: Graph, segments: Sequence[Segment]
) -> dict[int, FallbackReason]:
    """Operations on lists of tensors that would cross between a device and something else."""
    torn = {
        value
        for segment in segments
        if segment.on_device
        for value in (*segment.inputs, *segment.outputs)
        if captured.values[value].dtype == tf.variant
    }
    return {
        index: FallbackReason(
            operation.type,
            f"a list of tensors would cross to another segment (node {operation.name})",
            "refused",
            operation.source,
        )
        for index, operation in enumerate(captured.operations)
        if graph.nodes[index].on_device
        and not torn.isdisjoint((*operation.inputs, *operation.outputs))
    }


def _parts(captured: CapturedFunction, graph: Graph, segments: Sequence[Segment]) -> Split:
    maker = {value: index for index, segment in enumerate(segments) for value in segment.outputs}
    arguments = set(captured.arguments)
    parts = []
    for segment in segments:
        inputs = [value for value in segment.inputs if value not in captured.captures]
        parts.append(
            Part(
                on_device=segment.on_device,
                operations=segment.nodes,
                inputs=tuple(inputs),
                places=tuple(map(segment.inputs.index, inputs)),
                held=tuple(value for value in segment.inputs if value in captured.captures),
                outputs=segment.outputs,
                fallback_reasons=() if segment.on_device else _reasons(captured, graph, segment),
                reads=tuple(sorted({maker[value] for value in inputs if value in maker})),
                takes_arguments=not arguments.isdisjoint(inputs),
                gives_results=not set(graph.outputs).isdisjoint(segment.outputs),
            )
        )
    return Split(graph, segments, parts)


def _reasons(
    captured: CapturedFunction, graph: Graph, segment: Segment
) -> tuple[FallbackReason, ...]:
    found = []
    for index in segment.nodes:
        reason = graph.nodes[index].fallback_reason
        operation = captured.operations[index]
        if reason is not None and reason.kind == "small" and reason.source is None:
            # The partition knows the node's name only.
            reason = FallbackReason(operation.type, reason.reason, "small", operation.source)
        if reason is not None:
            found.append(reason)
    return tuple(found)
