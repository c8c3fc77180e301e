"""The bridge below torch.compile: a plan, from tensors to tensors, and an Executable on buffers."""

from __future__ import annotations

from functools import partial

import pjrt_bridge
from benchmarks.case import Case
from benchmarks.competitors import Absent, Timer, timer
from benchmarks.competitors.programs import program_of
from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.mixed.pinned import PinnedInputs
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER


def prepare(case: Case, name: str) -> Timer:
    """A timer of one launch: inputs put, program executed and awaited, results adopted.

    That of "executable" calls one on buffers, and waits for the first result.

    Raises:
        Absent: the dispatcher was not built, or the plugin does not use host memory in place.
    """
    traced = program_of(case)
    client = pjrt_bridge.client()
    executable = client.compile(traced.emitted.program)
    if name == "executable":
        buffers = [client.put(tensor) for tensor in traced.tensors]
        return timer(lambda: executable(*buffers)[0].block_until_ready())
    bindings = traced.emitted.bindings
    exchange = ADAPTER.exchange()
    plan = exchange and executable.plan(bindings.parameters, bindings.results, exchange)
    if plan is None:
        raise Absent("there is no dispatcher for this plugin, or it was not built")
    pinned = PinnedInputs(ADAPTER, client, bindings.parameters, [], range(traced.kept))
    kept = pinned.renew(traced.tensors, CallRecord(1))
    values = tuple(traced.tensors)
    assert plan.call(values, kept.parts) is not None, "the values lie as the program takes them"
    return _Calls(timer(partial(plan.call, values, kept.parts)), (executable, kept))


class _Calls:
    """A timer, and what has to outlive its calls."""

    def __init__(self, time_them: Timer, kept: object) -> None:
        self._time_them = time_them
        self._kept = kept

    def __call__(self, repeats: int) -> float:
        return self._time_them(repeats)
