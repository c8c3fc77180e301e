"""explain(): a report of what a TensorFlow function runs where, and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pjrt_bridge.mixed.records import watching
from pjrt_bridge.report.report import Report
from pjrt_bridge.tf_interop import compat
from pjrt_bridge.tf_interop.function import Function, function


def explain(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Compile a function, call it, and report what ran where, why, and what it cost.

    The function is called three times: once to compile it, once segment by segment to take the
    times, once undisturbed. Variables get their values back after each; other effects, such as what
    it prints or writes to tables, happen three times.

    Args:
        fn: what `function` made, or anything that it takes.
        args: its arguments.
        kwargs: its arguments by name.

    Raises:
        Exception: whatever compiling or calling the function raises.
    """
    compiled = fn if isinstance(fn, Function) else function(fn)
    known = compiled.is_compiled(args, kwargs)
    started = time.perf_counter()
    graph = compiled.compiled(args, kwargs)
    compiling = time.perf_counter() - started

    def call() -> float:
        with _undone(graph.function.captured_inputs):
            begun = time.perf_counter()
            compiled(*args, **kwargs)
            return time.perf_counter() - begun

    first = call()
    with watching() as watch:
        call()
    again = call()
    report = graph.record.report(watch.calls.get(graph.record))
    return Report(
        program=compiled.__name__,
        graphs=(replace(report, name=compiled.__name__),),
        first_seconds=None if known else compiling + first,
        call_seconds=again,
        framework="tensorflow",
    )


@contextmanager
def _undone(held: Sequence[Any]) -> Iterator[None]:
    """Give variables their values back."""
    handles = [item for item in held if compat.is_variable(item)]
    values = compat.reader(handles)()
    try:
        yield
    finally:
        for handle, value in zip(handles, values, strict=True):
            compat.assign(handle, value)
