"""The bridge below torch.compile: a plan of the runtime, from tensors to tensors."""

from __future__ import annotations

from functools import partial

import pjrt_bridge
from benchmarks.case import Case
from benchmarks.competitors import Absent, Timer, timer
from benchmarks.competitors.programs import program_of
from pjrt_bridge.runtime.dispatch.plans import Given, Kept
from pjrt_bridge.torch_interop.tensors import framework, view


def prepare(case: Case, name: str) -> Timer:
    """A timer of one launch: inputs put, program executed and awaited, results adopted.

    Raises:
        Absent: the dispatcher was not built, or the plugin does not use host memory in place.
    """
    traced = program_of(case)
    client = pjrt_bridge.client()
    executable = client.compile(traced.emitted.program)
    forms = [(position, form) for position, form in traced.emitted.inputs]
    torch_tensors = framework()
    plan = torch_tensors and executable.plan(
        [Given(position, form.array) for position, form in forms],
        [result.made for result in traced.emitted.results],
        torch_tensors,
    )
    if plan is None:
        raise Absent("there is no dispatcher for this plugin, or it was not built")
    buffers = [
        view(client, form, traced.tensors[position]) if position < traced.kept else None
        for position, form in forms
    ]
    addresses = [
        0 if buffer is None else traced.tensors[position].data_ptr()
        for buffer, (position, _) in zip(buffers, forms, strict=True)
    ]
    kept = Kept(buffers, addresses)
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
