"""Alike parts of an optimizer's step, of which two are traced and the others repeated.

A step does the same with each of many parameters, and torch takes as long for each of them. Of
every kind of parameters two are traced: what is made of one is repeated for the others, if it is
made of this one's own tensors alone and torch made the same of both.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat

ParameterState = dict[str, torch.Tensor]
"""The state of one parameter."""

_OPTIMIZERS = "torch.optim."


@dataclass(frozen=True)
class TracedStep:
    """A step as a functional graph, and how its inputs and outputs belong to parameters.

    Attributes:
        graph: takes constants, parameters, gradients, and the state of one parameter after the
            other; returns new values first, then nothing but None.
        constants: names and values of tensors that the step holds itself.
        state: the number of tensors that are kept for each parameter.
        updates: for each output the input of which it is the new value; constants do not count.
    """

    graph: fx.Graph
    constants: tuple[tuple[str, torch.Tensor], ...]
    state: tuple[int, ...]
    updates: tuple[int, ...]

    @property
    def inputs(self) -> list[fx.Node]:
        """The placeholders behind the constants."""
        found = [node for node in self.graph.nodes if node.op == "placeholder"]
        return found[len(self.constants) :]

    @property
    def own(self) -> list[list[int]]:
        """For each parameter the positions of its inputs, without the constants."""
        return _own(self.state)


def treats_each_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer's step is known to do with a parameter what it would do without others.

    Those of `torch.optim` are. In what another one does with two of many parameters their number
    may be a constant, and what it does with some of the others only is not seen.
    """
    step = inspect.unwrap(type(optimizer).step)
    return all(f"{one.__module__}.".startswith(_OPTIMIZERS) for one in (type(optimizer), step))


def kinds_of(
    optimizer: torch.optim.Optimizer,
    owners: Sequence[torch.Tensor],
    states: Sequence[ParameterState],
) -> list[list[int]]:
    """The positions of parameters of one kind each: of one group, and alike with their states."""
    groups = {
        id(owner): at
        for at, group in enumerate(optimizer.param_groups)
        for owner in group["params"]
    }
    found: dict[Any, list[int]] = {}
    for at, (owner, state) in enumerate(zip(owners, states, strict=True)):
        kept = tuple((key, _description(value)) for key, value in state.items())
        kind = (groups[id(owner)], _description(owner), kept)
        found.setdefault(kind, []).append(at)
    return list(found.values())


def two_of_each(kinds: Sequence[Sequence[int]]) -> list[int]:
    """The first and the last of each kind, in the order of all."""
    return sorted({at for kind in kinds for at in (kind[0], kind[-1])})


def repeated(
    step: TracedStep, traced: Sequence[int], kinds: Sequence[Sequence[int]]
) -> TracedStep | None:
    """The step of all parameters; None if it is not the same for each of them by itself.

    Args:
        step: over two of each kind.
        traced: which of all parameters these are, as `two_of_each` gives them.
        kinds: positions of all parameters.
    """
    parts = _parts(step)
    if parts is None:
        return None
    of = {at: index for index, at in enumerate(traced)}
    model: dict[int, int] = {}
    for kind in kinds:
        first, last = of[kind[0]], of[kind[-1]]
        if parts[first].form != parts[last].form:
            return None
        model |= dict.fromkeys(kind, first)
    models = [model[at] for at in range(len(model))]
    state = tuple(step.state[one] for one in models)
    graph = fx.Graph()
    placeholders = [node for node in step.graph.nodes if node.op == "placeholder"]
    constants = placeholders[: len(step.constants)]
    shared = {node: graph.node_copy(node) for node in constants}
    examples = placeholders[len(constants) :]
    places = _own(state)
    example_of = {
        place: examples[example]
        for one, own in zip(models, places, strict=True)
        for place, example in zip(own, step.own[one], strict=True)
    }
    inputs = []
    for place in range(len(example_of)):
        inputs.append(graph.placeholder(f"input_{place}"))
        inputs[-1].meta = dict(example_of[place].meta)
    values: dict[int, fx.Node] = {}
    for one, own in zip(models, places, strict=True):
        copies = {**shared, **{example_of[place]: inputs[place] for place in own}}
        for node in parts[one].nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        values |= {own[index]: copies[value] for index, value in parts[one].values.items()}
    updates = tuple(sorted(values))
    graph.output(tuple(values[place] for place in updates))
    return TracedStep(graph, step.constants, state, updates)


@dataclass(frozen=True)
class _Part:
    """What a step does with one parameter.

    Attributes:
        nodes: in order, without placeholders.
        values: new values, by the index among the parameter's own inputs.
        form: equal for parts that do the same, each with its own inputs.
    """

    nodes: list[fx.Node]
    values: Mapping[int, fx.Node]
    form: Any


def _parts(step: TracedStep) -> list[_Part] | None:
    """What a step does with each parameter; None if that is not all that it does."""
    nodes = list(step.graph.nodes)
    (outputs,) = nodes[-1].args
    if any(compat.is_symbolic(node.meta.get("val")) for node in nodes):
        return None
    new = dict(zip(step.updates, outputs, strict=False))
    inputs = step.inputs
    constants = [node for node in nodes if node.op == "placeholder"][: len(step.constants)]
    parts = []
    placed: set[fx.Node] = set()
    for own in step.own:
        values = {index: new[place] for index, place in enumerate(own) if place in new}
        read = _read_for(values.values())
        given = [inputs[place] for place in own]
        if any(node.op == "placeholder" for node in read.difference(given, constants)):
            return None
        part = [node for node in nodes if node in read and node.op != "placeholder"]
        placed.update(part)
        names: dict[fx.Node, Any] = {node: ("constant", node.name) for node in constants}
        names |= {node: ("own", index) for index, node in enumerate(given)}
        names |= {node: ("made", index) for index, node in enumerate(part)}
        form = (
            [(node.op, str(node.target), _form((node.args, node.kwargs), names)) for node in part],
            {index: names[value] for index, value in values.items()},
        )
        parts.append(_Part(part, values, form))
    others = (node for node in nodes if node.op == "call_function" and node not in placed)
    return None if any(node.is_impure() for node in others) else parts


def _read_for(values: Iterable[fx.Node]) -> set[fx.Node]:
    """All nodes of which values are made, and these."""
    found: set[fx.Node] = set()
    waiting = list(values)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _form(item: Any, names: Mapping[fx.Node, Any]) -> Any:
    """An argument with the names of nodes; equal only for those of one type and value."""
    if isinstance(item, fx.Node):
        return names[item]
    if isinstance(item, (tuple, list)):
        return tuple(_form(one, names) for one in item)
    if isinstance(item, Mapping):
        return tuple((key, _form(one, names)) for key, one in item.items())
    return type(item), repr(item)


def _own(state: Sequence[int]) -> list[list[int]]:
    """Positions of the inputs of each parameter: its value, its gradient, its state."""
    count, found = len(state), []
    first = 2 * count
    for at, size in enumerate(state):
        found.append([at, count + at, *range(first, first + size)])
        first += size
    return found


def _description(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else None
    return type(tensor), tuple(tensor.shape), tensor.dtype, tensor.device, tensor.layout, strides
