"""Advice: sentences on what the user can improve, ordered by the time that it may save."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pjrt_bridge.report import wording
from pjrt_bridge.report.data import EXPORTED, FrameworkName, GraphReport, ReportData, SegmentReport
from pjrt_bridge.report.fallback_reason import ReasonKind

# Rough costs in seconds of a call, used only to order the advice.
_PER_SEGMENT = 100e-6
_PER_HOST_OPERATOR = 10e-6
_PER_COPIED_BYTE = 0.3e-9
_PER_GRAPH = 50e-6
_CALLS_PER_COMPILATION = 100

_LEAST_COPIED = 64 * 1024
"""Bytes copied in a call below which copies are not mentioned."""
_LEAST_RECOMPILED = 2
"""Number of recompiled graphs below which they are taken for warming up."""
_TINY = 4
"""Number of operators up to which a device segment may cost more than it saves."""
_LEAST_TINY = 3
"""Number of such segments below which they are not mentioned."""

LONGEST_BREAK = 600
"""Characters of what a framework says of a place where it divided the program: its explanation
ends with the setting that helps."""
_SHOWN = 3
_LONGEST = 160


def advise(report: ReportData) -> list[str]:
    """Sentences about what can be improved; empty where there is nothing to do.

    Fallbacks that the user requested or that are not worth a launch get no advice, and neither
    does an exported program, which no option changes any more.
    """
    ran = [graph for graph in report.graphs if graph.ran and graph.kind != EXPORTED]
    graphs = [graph for graph in ran if graph.within is None]
    found = [
        *_failures(ran),
        *_fallbacks(graphs, _SENTENCES[report.framework]),
        *_copies(graphs),
        *_recompilations(report),
        *(_tiny_segments(graphs) if report.framework == "torch" else ()),
        *_breaks(report),
    ]
    return [sentence for _, sentence in sorted(found, key=lambda item: -item[0])]


_Sentences = Mapping[ReasonKind, Callable[[str], str]]
"""For each kind of fallback reason a sentence about operators, given their description."""
_Advice = Iterator[tuple[float, str]]
"""Sentences, each with the seconds of a call that it may save."""


def _failures(graphs: Iterable[GraphReport]) -> _Advice:
    reasons: Counter[tuple[str, str]] = Counter()
    for graph in graphs:
        for found in graph.fallback_reasons:
            if found.kind == "failed":
                about = f"{found.operator}: {found.reason}" if found.operator else found.reason
                reasons[wording.printable(graph.plugin), wording.clip(about, _LONGEST)] += 1
    if not reasons:
        return
    described = [
        f"{plugin} failed {wording.times(number)} with: {about}"
        for (plugin, about), number in reasons.most_common()
    ]
    # Failures come before everything that is merely slow.
    yield (
        float("inf"),
        f"{wording.listed(described, _SHOWN, 'failure', '; ')}. Results are not affected. Show the"
        " message to whoever makes the plugin; another version of it or other compiler flags may"
        " avoid the failure.",
    )


@dataclass
class _HostOperator:
    """An operator on the host, with its fallback reasons of one kind."""

    count: int = 0
    reasons: dict[str, None] = field(default_factory=dict)
    source: str | None = None


def _fallbacks(graphs: Collection[GraphReport], sentences: _Sentences) -> _Advice:
    before = _segments_without(graphs)
    for kind, sentence_about in sentences.items():
        operators = _host_operators(graphs, kind)
        if not operators:
            continue
        extra = {name: before - _segments_without(graphs, kind, [name]) for name in operators}
        names = sorted(operators, key=lambda name: (-extra[name], -operators[name].count, name))
        described = [_described(kind, name, operators[name], extra[name]) for name in names]
        sentence = sentence_about(wording.listed(described, _SHOWN, "operator", "; "))
        left = _segments_without(graphs, kind, operators)
        if left < before and len(names) > 1:
            sentence += f" Without all of them {wording.plural(left, 'segment')} would do."
        count = sum(operator.count for operator in operators.values())
        yield (before - left) * _PER_SEGMENT + count * _PER_HOST_OPERATOR, sentence


def _host_operators(graphs: Iterable[GraphReport], kind: ReasonKind) -> dict[str, _HostOperator]:
    operators: dict[str, _HostOperator] = {}
    for segment in (part for graph in graphs for part in graph.segments):
        if segment.placement == "host":
            here = [found for found in segment.fallback_reasons if found.kind == kind]
            for found in here:
                operator = operators.setdefault(found.operator, _HostOperator())
                operator.reasons[found.reason] = None
                operator.source = operator.source or found.source
            for name in {found.operator for found in here}:
                operators[name].count += segment.operators.get(name, 1)
    return operators


def _segments_without(
    graphs: Iterable[GraphReport], kind: ReasonKind | None = None, operators: Collection[str] = ()
) -> int:
    """How many segments would be left if these operators had no fallback reasons of one kind.

    An upper bound: neighbours in running order can always be joined, others perhaps as well. Except
    that a segment in which other fallback reasons stay may itself divide, which a report cannot
    tell.
    """

    def on_device(segment: SegmentReport) -> bool:
        gone = [
            found.kind == kind and found.operator in operators for found in segment.fallback_reasons
        ]
        return segment.placement == "device" or (len(gone) > 0 and all(gone))

    return sum(_changes(map(on_device, graph.segments)) for graph in graphs)


def _changes(places: Iterable[bool]) -> int:
    """Segments that are left when neighbours in the same place are joined."""
    return sum(1 for _ in itertools.groupby(places))


def _described(kind: ReasonKind, name: str, operator: _HostOperator, extra: int) -> str:
    details = [wording.times(operator.count)]
    if extra:
        details.append(wording.plural(extra, "extra segment"))
    if operator.source:
        details.append(file_and_line(operator.source))
    about = wording.clip(name, _LONGEST) if name else "a whole segment"
    if kind == "refused":
        reasons = [wording.clip(reason, _LONGEST) for reason in operator.reasons]
        about += f": {wording.listed(reasons, 1, 'reason')}"
    return f"{about} ({', '.join(details)})"


def file_and_line(source: str) -> str:
    """`file:line` of a source line."""
    found = re.match(r".+?:\d+(?=:|$)", wording.printable(source))
    return found.group() if found else wording.clip(source, 60)


_TORCH: _Sentences = {
    "unsupported": lambda names: (
        f"No lowering: {names}. Bring lowerings through the hook pjrt_bridge_lowerings, write the"
        " line with other operators, or compute it at the beginning or the end, where it divides"
        " nothing."
    ),
    "refused": lambda names: (
        f"Not lowered as used: {names}. Change the line so that the reason is gone, or bring a"
        " lowering that does it through the hook pjrt_bridge_lowerings."
    ),
    "slow": lambda names: (
        f"Faster on the host: {names}. `pjrt-bridge calibrate` measures that anew on this machine;"
        ' options={"placement": "device"} keeps everything on the device.'
    ),
    "data": lambda names: (
        f"Depends on data: {names}. Keep sizes fixed, as with `where` in place of a boolean index,"
        " and numbers in tensors, not read out of them."
    ),
    "sizes": lambda names: (
        f"Sizes that keep changing: {names}. Change the operators that keep them from being padded,"
        " pad them in the model, or use a cache of a fixed size."
    ),
}
_TENSORFLOW: _Sentences = {
    "unsupported": lambda names: (
        f"XLA has no kernel: {names}. Write the line with other operations, or compute it at the"
        " beginning or the end, where it divides nothing."
    ),
    "refused": lambda names: (
        f"Not compiled as used: {names}. Change the line so that the reason is gone, or compute it"
        " at the beginning or the end, where it divides nothing."
    ),
    "data": lambda names: (
        f"Depends on data: {names}. Keep sizes fixed, as with `tf.where` of three arguments in"
        " place of `tf.boolean_mask`, and numbers that are sizes out of tensors."
    ),
}
_SENTENCES: Mapping[FrameworkName, _Sentences] = {"tensorflow": _TENSORFLOW, "torch": _TORCH}


def _copies(graphs: Collection[GraphReport]) -> _Advice:
    copied = sum(segment.bytes_copied for graph in graphs for segment in graph.segments)
    if copied < _LEAST_COPIED:
        return
    most, graph, number = max(
        (
            (segment.bytes_copied, graph.name, number)
            for graph in graphs
            for number, segment in enumerate(graph.segments)
        ),
        key=lambda item: item[0],
    )
    where = f"{wording.byte_size(most)} of it in segment {number} of {wording.clip(graph, 60)}"
    what = (
        "The plugin takes contiguous host memory in place where it begins at a multiple of 64"
        " bytes; make slices and strided views contiguous, once and outside of the call."
        if any(segment.bytes_shared for graph in graphs for segment in graph.segments)
        else "The plugin took nothing in place. On a device with its own memory only fewer"
        " crossings help; on the host, contiguous memory that begins at a multiple of 64 bytes."
    )
    yield (
        copied * _PER_COPIED_BYTE,
        f"{wording.byte_size(copied)} are copied in each call, {where}. {what}",
    )


def _recompilations(report: ReportData) -> _Advice:
    again = report.recompilations
    if len(again) < _LEAST_RECOMPILED:
        return
    triggers = list(dict.fromkeys(wording.clip(graph.trigger or "", 80) for graph in again))
    seconds = sum(graph.compile_seconds + graph.lowering_seconds for graph in again)
    yield (
        seconds / _CALLS_PER_COMPILATION,
        f"{len(again)} graphs were compiled again, which took {wording.duration(seconds)}:"
        f" {wording.listed(triggers, _SHOWN, 'trigger', '; ')}. Each set of sizes is compiled for"
        " itself: pad the inputs to a few sizes, and call with each of them before it matters.",
    )


def _tiny_segments(graphs: Iterable[GraphReport]) -> _Advice:
    mixed = [graph for graph in graphs if graph.on_device < len(graph.segments)]
    sizes = sorted(
        _size(segment)
        for graph in mixed
        for segment in graph.segments
        if segment.placement == "device" and _size(segment) <= _TINY
    )
    if len(sizes) < _LEAST_TINY:
        return
    least = sizes[-1] + 1
    places = [
        [segment.placement == "device" and _size(segment) >= least for segment in graph.segments]
        for graph in mixed
    ]
    before = sum(len(graph.segments) for graph in mixed)
    left = sum(_changes(graph) for graph in places)
    nothing = "" if any(map(any, places)) else ", none of them on the device"
    yield (
        (before - left) * _PER_SEGMENT / 2,
        f"{len(sizes)} device segments have {wording.plural(sizes[-1], 'operator')}"
        f"{' or fewer' if sizes[0] < sizes[-1] else ' each'}, which may cost more to launch than"
        f' they save. options={{"min_segment": {least}}} leaves them on the host: at most'
        f" {wording.plural(left, 'segment')} instead of {before}{nothing}.",
    )


def _size(segment: SegmentReport) -> int:
    return sum(segment.operators.values())


def _breaks(report: ReportData) -> _Advice:
    breaks = list(
        dict.fromkeys(wording.clip(found.rstrip("."), LONGEST_BREAK) for found in report.breaks)
    )
    if not breaks:
        return
    where = "once" if len(breaks) == 1 else f"in {len(breaks)} places"
    what = f"divided the program {where}" if report.graphs else "found nothing to compile"
    yield (
        len(breaks) * _PER_GRAPH,
        f"The framework {what}:"
        f" {wording.listed(breaks, _SHOWN, 'place', '; ')}. Take out of the compiled function what"
        " cannot be traced: printing, branches on values, calls into other libraries."
        f"{_outside(report)}",
    )


def _outside(report: ReportData) -> str:
    if not report.outside:
        return ""
    operators = wording.listed(wording.counted(report.outside.items()), _SHOWN, "operator")
    where = "Between these graphs the" if report.graphs else "The"
    return f" {where} framework itself ran {operators}."
