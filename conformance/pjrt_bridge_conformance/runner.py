"""Runs checks in a worker process, and finds a new one where a plugin took it down.

A worker that dies or takes too long is a finding about the check that it was in. Where the library
cannot be loaded, or no client be made, the checks that need it are not run at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pjrt_bridge.versions import version
from pjrt_bridge_conformance.check import Check, Needs
from pjrt_bridge_conformance.context import Subject
from pjrt_bridge_conformance.process import Answer, WorkerProcess
from pjrt_bridge_conformance.report import Report, Result, Status
from pjrt_bridge_conformance.suite import CLIENT, LOAD

LIMIT = 120.0
"""Seconds that a check may take by default."""

END = "lifecycle.end"
"""The result that is there only where the worker process did not end well after its checks."""

_GATES = {LOAD: Needs.LIBRARY, CLIENT: Needs.CLIENT}


def run(
    subject: Subject,
    checks: Sequence[Check],
    *,
    limit: float = LIMIT,
    progress: Callable[[Result], None] = lambda result: None,
) -> Report:
    """Run checks on a plugin.

    Args:
        subject: the plugin.
        checks: of the suite with the subject's modules, in order.
        limit: seconds that each may take.
        progress: called with each result as it comes.
    """
    start = time.perf_counter()
    versions = {name: version(name) for name in ("pjrt-bridge", "jaxlib")}
    report = Report({"name": subject.plugin}, versions=versions)
    missing: dict[Needs, Answer] = {}

    def add(name: str, group: str, answer: Answer, seconds: float) -> None:
        status, reason, more = answer
        report.plugin.update(more.get("about", {}))
        seconds = round(float(more.get("seconds", seconds)), 6)
        result = Result(name, group, status, reason, seconds)
        report.results.append(result)
        progress(result)

    worker = WorkerProcess(subject, limit)
    try:
        for check in checks:
            began = time.perf_counter()
            lacking = [missing[need] for need in sorted(missing) if need <= check.needs]
            answer = lacking[0] if lacking else worker.run(check)
            add(check.name, check.group, answer, time.perf_counter() - began)
            if check.name in _GATES and answer[0] is not Status.PASS:
                missing[_GATES[check.name]] = _without(check, *answer)
        began = time.perf_counter()
        end = worker.end()
        if end[0] is not Status.PASS:
            add(END, "lifecycle", end, time.perf_counter() - began)
    finally:
        worker.close()
    report.seconds = time.perf_counter() - start
    return report


def _without(gate: Check, status: Status, reason: str, _: object) -> Answer:
    """The results of checks whose requirement failed."""
    if status is Status.ABSENT:
        return status, reason, {}
    return Status.NOT_RUN, f"{gate.name}: {reason}", {}
