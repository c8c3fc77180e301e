"""Reports on exported models: their programs as graph records of mixed execution."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.exported.parts import SplitProgram
from pjrt_bridge.exported.specialization import Specialization
from pjrt_bridge.report.data import EXPORTED, GraphReport, SegmentReport
from pjrt_bridge.report.report import Report

PLUGIN = "the device"
"""What stands for a plugin's name: an exported model is for any."""


def report(name: str, programs: Sequence[Specialization]) -> Report:
    """Each program as a graph, each part of it as a segment; what is whole is one segment."""
    graphs = (GraphReport(one.program.name, EXPORTED, PLUGIN, _segments(one)) for one in programs)
    return Report(name, tuple(graphs))


def _segments(one: Specialization) -> tuple[SegmentReport, ...]:
    if not isinstance(one.program, SplitProgram):
        return (SegmentReport("device", {}, takes_arguments=True, gives_results=True),)
    parts = one.program.parts
    arguments = range(len(one.program.parameters))
    maker = {value: index for index, part in enumerate(parts) for value in part.outputs}
    return tuple(
        SegmentReport(
            placement="device" if part.on_device else "host",
            operators=part.operators,
            fallback_reasons=part.fallback_reasons,
            reads=tuple(sorted({maker[value] for value in part.inputs if value in maker})),
            takes_arguments=any(value in arguments for value in part.inputs),
            gives_results=not set(one.program.results).isdisjoint(part.outputs),
        )
        for part in parts
    )
