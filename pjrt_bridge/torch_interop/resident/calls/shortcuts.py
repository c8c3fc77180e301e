"""Calls of operators that the compiled module leads to their programs (`operators.c`).

A call of which there is nothing to do but to start one program, on arrays that are on the device,
goes that way from the third time on: what it depends on is compared in C, the program is started
there, and its results become tensors. Everything else, and every failure, takes the way through
Python, which gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pjrt_bridge import timeline
from pjrt_bridge.mixed.adapter import Bindings, Computed, Constant, SegmentInput
from pjrt_bridge.mixed.launchers import BufferLauncher
from pjrt_bridge.runtime import native
from pjrt_bridge.runtime.dispatch import outputs
from pjrt_bridge.runtime.ownership import callbacks
from pjrt_bridge.runtime.ownership.deferred import deferred_queues, run_deferred
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from pjrt_bridge.torch_interop.bind.graphs import DeviceGraph, PlainGraph
from pjrt_bridge.torch_interop.compat import OpOverload, leave_alone
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.passes.functionalize_rng import DrawnKeys
from pjrt_bridge.torch_interop.passes.lift_scalars import LiftedScalars
from pjrt_bridge.torch_interop.passes.pipeline import Rewritten, Step
from pjrt_bridge.torch_interop.resident.calls.calls import OperatorSchema
from pjrt_bridge.torch_interop.resident.client.chosen import chosen
from pjrt_bridge.torch_interop.resident.storages.storage import Contents, form_of_array
from pjrt_bridge.torch_interop.tensors import torch_dtype

held_off: list[object] = []
"""While something is in here, all calls take the way through Python; for tests and benchmarks."""

_entrances: list[Any] = []

_places: dict[OpOverload, int] = {}
"""For operators with a shortcut a bit for each argument whose integers may change."""

_SINGLETONS = (torch.dtype, torch.layout, torch.memory_format)


def entrance(otherwise: Callable[..., Any]) -> Any:
    """What torch calls with an operator and its arguments.

    Args:
        otherwise: gets the calls without a shortcut.
    """
    exchange = ADAPTER.exchange()
    if native.module is None or exchange is None:
        return otherwise
    made = native.module.Operators(
        torch.Tensor,
        torch.device,
        _SINGLETONS,
        NAME,
        torch.get_default_dtype,
        _places,
        exchange.exchange,
        (timeline.observers, callbacks.threads, held_off),
        deferred_queues,
        run_deferred,
        otherwise,
    )
    _entrances.append(made)
    return made


def has_entrance() -> bool:
    """Whether the compiled module gets calls: it is there, and can read torch's tensors."""
    return native.module is not None and bool(_entrances)


def tell_numbers(op: OpOverload, positions: Iterable[int]) -> None:
    """Have integers at some positions told from each other as floats are; for `learn`."""
    _places[op] = sum(1 << at for at in positions)


def forget() -> None:
    """Have all calls take the way through Python until they are learned again."""
    for made in _entrances:
        made.forget()


def _plan(graph: DeviceGraph) -> Any:
    """The dispatcher's plan of a graph's program.

    None where it has no plan, or needs more than the values that the graph is given.
    """
    launcher = graph.segment.launcher
    bindings, exchange = graph.segment.bindings, ADAPTER.exchange()
    if (
        exchange is None
        or not isinstance(launcher, BufferLauncher)
        or bindings.reads
        or any(item.position is None for item in bindings.parameters)
    ):
        return None
    return launcher.executable.plan(bindings.parameters, bindings.results, exchange, on_device=True)


@dataclass(frozen=True)
class CallNumbers:
    """The numbers that a program is given behind the arrays of a call: lifted numbers, and keys.

    Attributes:
        steps: that make them, and change nothing else.
        given: how many arrays a call gives.
        lifted: numbers are arguments.
        conditions: whether the program serves certain numbers; None where it serves all.
    """

    steps: tuple[Step, ...]
    given: int
    lifted: bool
    conditions: Callable[[Sequence[float]], bool] | None

    @staticmethod
    def of(
        rewritten: Sequence[Rewritten],
        given: int,
        *,
        lifted: bool,
        conditions: Callable[[Sequence[float]], bool] | None,
    ) -> CallNumbers | None:
        """What the steps before a call add to it; None where they do anything else."""
        steps = tuple(step for one in rewritten for step in one.steps)
        for step in steps:
            if not isinstance(step, DrawnKeys | LiftedScalars):
                return None
            if isinstance(step, LiftedScalars) and step.results:
                return None
        return CallNumbers(steps, given, lifted, conditions)

    def __call__(self, numbers: tuple[float, ...]) -> list[torch.Tensor] | None:
        """The numbers of a call; None where the program does not serve it."""
        if self.conditions is not None and not self.conditions(numbers):
            return None
        arguments: list[Any] = [None] * self.given
        if self.lifted:
            arguments.extend(numbers)
        known = len(arguments)
        for step in self.steps:
            step.prologue(arguments)
        return arguments[known:]

    def source(self, position: int, count: int) -> int | None:
        """The place of an argument of the graph in a call; None of a number.

        Args:
            position: of the argument.
            count: how many numbers a call has.
        """
        if position < self.given:
            return position
        lifted = count if self.lifted else 0
        return None if position < self.given + lifted else position - lifted


# The compiled module calls it, between the graphs of a compiled function as well.
leave_alone(CallNumbers.__call__)


def shortcut(
    graph: PlainGraph,
    form: OperatorSchema,
    layout: Sequence[Any],
    index: int,
    added: CallNumbers,
    numbers: int,
    noted: Callable[[], None],
) -> Any:
    """The `Shortcut` of a graph; None where more has to be done than to start one program.

    Args:
        graph: of one operator.
        form: of the operator.
        layout: see `CallProgram`.
        index: of the device.
        added: what the program is given behind the arrays of a call.
        numbers: how many a call has.
        noted: called before each launch of a program that checks data.
    """
    if native.module is None or not _entrances or not isinstance(graph, DeviceGraph):
        return None
    bindings = graph.segment.bindings
    results = [item.result if isinstance(item, Computed) else None for item in bindings.outputs]
    targets = [
        target.position if isinstance(target, SegmentInput) else None
        for target, _ in bindings.updates
    ]
    plan = None if None in results or None in targets else _plan(graph)
    if plan is None:
        return None
    places = [item.position for item in bindings.parameters]
    takes = bindings.takes
    sources = [
        None if at is None else added.source(at if takes is None else takes[at], numbers)
        for at in places
    ]
    if None in sources:
        return None
    return native.module.Shortcut(
        plan,
        Contents,
        tuple(form_of_array(spec.memory) for spec in bindings.results),
        tuple(
            _placed(where, results) if place is None else place
            for place, where in zip(form.returns, layout, strict=True)
        ),
        noted if graph.checks_data else None,
        added if added.steps or added.conditions else None,
        tuple(sources),
        tuple(
            number
            for target, (_, result) in zip(targets, bindings.updates, strict=True)
            for number in (target, result)
        ),
        index,
    )


class GraphShortcut:
    """Calls of a compiled graph all of whose tensors are on the device.

    New values of its arguments are other buffers in their storages. Where the program takes over
    the memory of the old ones and something else has these, the call goes another way.

    Args:
        shortcut: of the graph.
        types: element types of the parameters.
        written: positions of arguments that get new values.
    """

    def __init__(
        self, shortcut: Any, types: tuple[torch.dtype, ...], written: tuple[int, ...]
    ) -> None:
        self._shortcut = shortcut
        self._types = types
        self._written = written

    @staticmethod
    def of(graph: PlainGraph, results: Sequence[bool], index: int) -> GraphShortcut | None:
        """The shortcut of a graph; None where more has to be done than to start one program.

        Args:
            graph: see above.
            results: for each of its results whether it is on the device.
            index: of the device.
        """
        if native.module is None or not _entrances or not isinstance(graph, DeviceGraph):
            return None
        bindings = graph.segment.bindings
        returns: list[Any] = []
        for item, resident in zip(bindings.outputs, results, strict=True):
            if isinstance(item, Constant) and item.value is None:
                returns.append(None)
            elif not resident or isinstance(item, Constant):
                return None
            else:
                returns.append(item.result if isinstance(item, Computed) else ("", item.position))
        updates = _updates(bindings)
        if updates is None or bindings.takes is not None:
            return None
        plan = _plan(graph)
        if plan is None:
            return None
        forms = tuple(form_of_array(spec.memory) for spec in bindings.results)
        sources = tuple(range(len(bindings.parameters)))
        made = native.module.Shortcut(
            plan, Contents, forms, (returns,), None, None, sources, updates, index
        )
        types = tuple(torch_dtype(item.spec.type.dtype) for item in bindings.parameters)
        written = {
            target.position for target, _ in bindings.updates if isinstance(target, SegmentInput)
        }
        return GraphShortcut(made, types, tuple(sorted(written)))

    def run(self, arguments: Sequence[Any]) -> Sequence[Any] | None:
        """The results; None where the call has to go another way."""
        if timeline.observers or callbacks.threads or held_off:
            return None
        run_deferred()
        found: list[Any] | None = _entrances[0].run(self._shortcut, self._types, (None, *arguments))
        if found is not None and self._written:
            torch.autograd.graph.increment_version([arguments[at] for at in self._written])
        return found


def address(held: Any, index: int) -> int | None:
    """Where the elements of a shortcut's result are in host memory, once they are there.

    None where Python has to find out, and of anything else.

    Args:
        held: what a storage holds; the caller keeps it.
        index: of the device.
    """
    if not outputs.is_output(held) or timeline.observers or callbacks.threads or held_off:
        return None
    if not chosen(index)[0].shares_host_memory:
        return None
    found: int | None = held.address()
    return found


def _updates(bindings: Bindings) -> tuple[int, ...] | None:
    """For each update the parameter that it is of, and the result.

    None where one is of no parameter, or lies otherwise than this.
    """
    updated = bindings.updated()
    indices = {item.position: at for at, item in enumerate(bindings.parameters)}
    if updated is None or not indices.keys() >= set(updated.values()):
        return None
    return tuple(
        number for result, position in updated.items() for number in (indices[position], result)
    )


def _placed(where: Any, results: Sequence[int | None]) -> Any:
    if isinstance(where, list):
        return [_placed(item, results) for item in where]
    return results[where]
