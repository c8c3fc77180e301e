"""Calls of operators that the compiled module leads to their programs (`operators.c`).

A call of which there is nothing to do but to start one program, on arrays that are on the device,
goes that way from the third time on: what it depends on is compared in C, the program is started
there, and its results become tensors. Everything else, and every failure, takes the way through
Python, which gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pjrt_bridge import timeline
from pjrt_bridge.mixed.adapter import Argument, Computed
from pjrt_bridge.mixed.launchers import BufferLauncher, PreparedLauncher
from pjrt_bridge.runtime.dispatch import native
from pjrt_bridge.runtime.ownership import callbacks
from pjrt_bridge.runtime.ownership.deferred import left_behind, tidy
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from pjrt_bridge.torch_interop.bind.graphs import DeviceGraph, PlainGraph
from pjrt_bridge.torch_interop.device.calls import Form
from pjrt_bridge.torch_interop.device.naming import NAME
from pjrt_bridge.torch_interop.device.storage import Contents, form_of_array

held_off: list[object] = []
"""While something is in here, all calls take the way through Python; for tests and benchmarks."""

_entrances: list[Any] = []

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
        exchange.exchange,
        (timeline.observers, callbacks.threads, held_off),
        left_behind,
        tidy,
        otherwise,
    )
    _entrances.append(made)
    return made


def forget() -> None:
    """Have all calls take the way through Python until they are learned again."""
    for made in _entrances:
        made.forget()


def shortcut(graph: PlainGraph, form: Form, layout: Sequence[Any], index: int) -> Any:
    """The `Shortcut` of a graph; None where more has to be done than to start one program.

    Args:
        graph: of one operator.
        form: of the operator.
        layout: see `CallProgram`.
        index: of the device.
    """
    if native.module is None or not isinstance(graph, DeviceGraph):
        return None
    launcher, before = graph.segment.launcher, None
    if isinstance(launcher, PreparedLauncher):
        launcher, before = launcher.launcher, launcher.before
    bindings, exchange = graph.segment.bindings, ADAPTER.exchange()
    if not isinstance(launcher, BufferLauncher) or bindings.reads or exchange is None:
        return None
    places = [item.position for item in bindings.parameters]
    results = [item.result if isinstance(item, Computed) else None for item in bindings.outputs]
    targets = [
        target.position if isinstance(target, Argument) else None for target, _ in bindings.updates
    ]
    if None in places or None in results or None in targets:
        return None
    plan = launcher.executable.plan(bindings.parameters, bindings.results, exchange, on_device=True)
    if plan is None:
        return None
    takes = bindings.takes
    return native.module.Shortcut(
        plan,
        Contents,
        tuple(form_of_array(spec.memory) for spec in bindings.results),
        tuple(
            _placed(where, results) if place is None else place
            for place, where in zip(form.returns, layout, strict=True)
        ),
        before,
        tuple(at if takes is None or at is None else takes[at] for at in places),
        tuple(
            number
            for target, (_, result) in zip(targets, bindings.updates, strict=True)
            for number in (target, result)
        ),
        index,
    )


def _placed(where: Any, results: Sequence[int | None]) -> Any:
    if isinstance(where, list):
        return [_placed(item, results) for item in where]
    return results[where]
