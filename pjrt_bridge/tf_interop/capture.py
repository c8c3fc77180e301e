"""A concrete function as one flat list of operations, functions that it calls inlined.

TensorFlow keeps calls as operations of their own (`PartitionedCall`), and orders effects by control
edges. Here a call gives way to what it calls, values are numbered, and an edge leads from effect to
effect: what has no effect runs when its inputs are there, whatever the graph says. Bodies of loops
and branches stay functions.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.tf_interop import compat
from pjrt_bridge.tf_interop.dtypes import crosses

_ALIASES = frozenset({"Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot"})
"""Operations whose results are their inputs."""
_LOOPS = frozenset({"StatelessWhile", "While"})
_READERS = frozenset({"ReadVariableOp", "VarHandleOp", "VarIsInitializedOp", "VariableShape"})
"""Stateful by their declaration, but without an effect that anybody could see."""
_LIBRARIES = ("tensorflow", "keras")


@dataclass(frozen=True, eq=False)
class FlatOperation:
    """An operation of the flat graph.

    Attributes:
        name: unique in the graph; calls on the way to it are in front, as in `call/add`.
        made: TensorFlow's operation, in the graph of its function.
        inputs: numbers of the values that it reads.
        outputs: numbers of those that it makes.
        after: indices of operations whose effects come before it.
        effect: whether something besides its results shows that it ran.
        source: the user's line, `file:line: code`, where TensorFlow knows it.
    """

    name: str
    made: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    after: tuple[int, ...]
    effect: bool
    source: str | None

    @property
    def type(self) -> str:
        """TensorFlow's name of the operation, such as `MatMul`."""
        return str(self.made.type)


@dataclass
class CapturedFunction:
    """A function in operations.

    Attributes:
        name: of the function.
        values: for each value a tensor of TensorFlow's graphs, which knows its type and shape.
        arguments: values that a call brings.
        captures: values that the function holds, with their tensors: variables, tables, constants.
        operations: in running order.
        outputs: values that a call gives, in the order of the function's flat results.
    """

    name: str
    values: list[Any] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    captures: dict[int, Any] = field(default_factory=dict)
    operations: list[FlatOperation] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def capture(function: Any) -> CapturedFunction:
    """The operations of a concrete function.

    Raises:
        NotExportable: the function finds its inputs anew in each call (deferred captures).
    """
    graph = function.graph
    if compat.deferred(graph):
        raise NotExportable(
            f"function {graph.name!r}: TensorFlow finds some of its inputs anew in each call "
            "(deferred captures), which nothing else can do; pass them as arguments"
        )
    found = CapturedFunction(graph.name)
    held = list(function.captured_inputs)
    count = len(graph.inputs) - len(held)
    flattening = _Flattening(found)
    bound: dict[int, int] = {}
    for index, tensor in enumerate(graph.inputs):
        value = flattening.value(tensor)
        bound[id(tensor)] = value
        if index < count:
            found.arguments.append(value)
        else:
            found.captures[value] = held[index - count]
    found.outputs = flattening.graph(graph, bound, "", ()).outputs[: _count(function)]
    return _pruned(found)


def _count(function: Any) -> int | None:
    """The number of a function's results; None where it does not say.

    Once TensorFlow differentiated it, its graph has what the gradient needs behind them.
    """
    structure = function.structured_outputs
    if structure is None:
        return None
    return sum(item is not None for item in tf.nest.flatten(structure, expand_composites=True))


@dataclass
class _Inlined:
    """The operations of a function that was inlined, as its caller needs them."""

    outputs: list[int]
    effects: tuple[int, ...]


class _Flattening:
    def __init__(self, found: CapturedFunction) -> None:
        self._found = found
        self._names: set[str] = set()
        # For each value the effects that have to come before an effect that reads it.
        self._before: dict[int, frozenset[int]] = {}

    def value(self, tensor: Any) -> int:
        """A new value."""
        self._found.values.append(tensor)
        return len(self._found.values) - 1

    def graph(
        self, graph: Any, numbers: dict[int, int], prefix: str, after: tuple[int, ...]
    ) -> _Inlined:
        """Add the operations of a function's graph.

        Args:
            graph: TensorFlow's.
            numbers: values of its inputs, by the identity of their tensors; all others are added.
            prefix: of names.
            after: effects before any of it.
        """
        effects: dict[int, tuple[int, ...]] = {}
        everything: dict[int, None] = {}
        results = {id(tensor.op) for tensor in graph.outputs}
        for made in _ordered(graph):
            if made.type == "Placeholder" and id(made.outputs[0]) in numbers:
                continue
            ahead = tuple(
                dict.fromkeys(
                    index for item in made.control_inputs for index in effects.get(id(item), ())
                )
            )
            inputs = [numbers[id(tensor)] for tensor in made.inputs]
            if made.type == "NoOp":
                effects[id(made)] = ahead
            elif made.type in _ALIASES:
                # The results of a function wait for all of its effects, which a call does anyway.
                waits = frozenset() if id(made) in results else frozenset(ahead)
                for tensor, value in zip(made.outputs, inputs, strict=True):
                    numbers[id(tensor)] = self._waiting(value, waits)
            elif (callee := compat.callee(made)) is not None:
                body = compat.called(graph, callee)
                self._call(body, made, inputs, numbers, prefix, (*after, *ahead), effects)
                everything.update(dict.fromkeys(effects[id(made)]))
            elif made.type == "Const" and not crosses(made.outputs[0].dtype):
                value = numbers[id(made.outputs[0])] = self.value(made.outputs[0])
                self._found.captures[value] = compat.constant(made)
            else:
                index = self._add(made, inputs, numbers, prefix, after, ahead)
                effects[id(made)] = (index,) if made.op_def.is_stateful else ahead
                if made.op_def.is_stateful:
                    everything[index] = None
        outputs = [numbers[id(tensor)] for tensor in graph.outputs]
        return _Inlined(outputs, tuple(everything))

    def _waiting(self, value: int, waits: frozenset[int]) -> int:
        """A value like another that is there after some effects."""
        if not waits or waits <= self._before.get(value, frozenset()):
            return value
        self._before[value] = self._before.get(value, frozenset()) | waits
        return value

    def _call(
        self,
        body: Any,
        made: Any,
        inputs: Sequence[int],
        numbers: dict[int, int],
        prefix: str,
        after: tuple[int, ...],
        effects: dict[int, tuple[int, ...]],
    ) -> None:
        inner = {id(tensor): value for tensor, value in zip(body.inputs, inputs, strict=True)}
        inlined = self.graph(body, inner, f"{prefix}{made.name}/", after)
        # The callee may have been differentiated, too.
        inlined.outputs[len(made.outputs) :] = []
        for tensor, value in zip(made.outputs, inlined.outputs, strict=True):
            numbers[id(tensor)] = value
        effects[id(made)] = inlined.effects

    def _add(
        self,
        made: Any,
        inputs: Sequence[int],
        numbers: dict[int, int],
        prefix: str,
        after: tuple[int, ...],
        ahead: tuple[int, ...],
    ) -> int:
        found = self._found
        stateful = bool(made.op_def.is_stateful)
        waits = frozenset(ahead).union(
            *(self._before[value] for value in inputs if value in self._before)
        )
        outputs = []
        for index, tensor in enumerate(made.outputs):
            value = numbers[id(tensor)] = self.value(tensor)
            outputs.append(value)
            if made.type in _LOOPS and tensor.dtype == tf.resource:
                # A loop gives the resources that it was given.
                numbers[id(tensor)] = inputs[index]
            if waits and not stateful:
                self._before[value] = waits
        found.operations.append(
            FlatOperation(
                name=self._name(prefix + made.name),
                made=made,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                after=tuple(sorted(waits.union(after))) if stateful else (),
                effect=stateful and made.type not in _READERS,
                source=source_line(made),
            )
        )
        return len(found.operations) - 1

    def _name(self, wanted: str) -> str:
        # Names that begin with an underscore cannot be imported.
        name = base = wanted.lstrip("_")
        count = 0
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name


def _ordered(graph: Any) -> Sequence[Any]:
    """The operations of a graph, each after what it reads and waits for."""
    operations = list(graph.get_operations())
    place = {id(item): index for index, item in enumerate(operations)}
    if all(
        place[id(before)] < index
        for index, item in enumerate(operations)
        for before in _sources(item)
    ):
        return operations
    ordered: dict[int, Any] = {}
    waiting = operations[::-1]
    while waiting:
        item = waiting[-1]
        ahead = [before for before in _sources(item) if id(before) not in ordered]
        if id(item) in ordered or not ahead:
            ordered.setdefault(id(waiting.pop()), item)
        else:
            waiting += ahead
    return list(ordered.values())


def _sources(operation: Any) -> Iterable[Any]:
    yield from (tensor.op for tensor in operation.inputs)
    yield from operation.control_inputs


def _pruned(found: CapturedFunction) -> CapturedFunction:
    """Without operations that neither give results nor have effects."""
    maker = {
        value: index
        for index, operation in enumerate(found.operations)
        for value in operation.outputs
    }
    needed = {index for index, operation in enumerate(found.operations) if operation.effect}
    needed.update(maker[value] for value in found.outputs if value in maker)
    waiting = list(needed)
    while waiting:
        operation = found.operations[waiting.pop()]
        for index in (maker[value] for value in operation.inputs if value in maker):
            if index not in needed:
                needed.add(index)
                waiting.append(index)
    place = {old: new for new, old in enumerate(sorted(needed))}
    operations = found.operations
    found.operations = [
        replace(item, after=tuple(sorted(_kept_before(operations, item.after, place))))
        for item in map(operations.__getitem__, place)
    ]
    return found


def _kept_before(
    operations: Sequence[FlatOperation], after: Iterable[int], place: Mapping[int, int]
) -> set[int]:
    """New indices of what comes before; of an operation that went, what came before that."""
    found: set[int] = set()
    waiting = list(after)
    seen: set[int] = set()
    while waiting:
        index = waiting.pop()
        if index in place:
            found.add(place[index])
        elif index not in seen:
            seen.add(index)
            waiting += operations[index].after
    return found


def source_line(operation: Any) -> str | None:
    """The innermost line of the user's own code that made an operation."""
    for frame in reversed(compat.traceback(operation)):
        path, line = str(frame.filename), frame.lineno
        if not _is_library(path):
            code = (frame.line or linecache.getline(path, line)).strip()
            return f"{path}:{line}: {code}" if code else f"{path}:{line}"
    return None


def _is_library(path: str) -> bool:
    parts = Path(path).parts
    if path.startswith("<"):
        return True
    return "site-packages" in parts and any(
        name in parts[parts.index("site-packages") :] for name in _LIBRARIES
    )
