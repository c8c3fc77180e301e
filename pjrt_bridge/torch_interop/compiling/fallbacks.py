"""Warnings, errors and records of graphs and segments that run on the host."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from pjrt_bridge.errors import FallbackForbidden, PjrtBridgeError
from pjrt_bridge.mixed.records import GraphRecord, SegmentRecord
from pjrt_bridge.report.fallback_reason import FallbackReason, UnintendedFallback
from pjrt_bridge.torch_interop.compiling.records import name_of_segment
from pjrt_bridge.torch_interop.compiling.target import Target


def tell(target: Target, record: GraphRecord, what: str, reasons: Iterable[FallbackReason]) -> None:
    """Warn once of each unintended fallback.

    Args:
        target: of the graph.
        record: of the graph.
        what: falls back, or has operators that do.
        reasons: of all fallbacks, intended ones too.

    Raises:
        FallbackForbidden: there is one, and the user's options forbid it.
    """
    found = UnintendedFallback.among(reasons)
    if found is None:
        return
    if target.options.fallback == "error":
        raise FallbackForbidden(
            f"the {record.kind} graph cannot run on plugin {target.plugin!r}: {found.shown}. "
            "Change the model there, or allow the host with options={'fallback': 'host'}"
        )
    target.ledger.warn_once(
        f"plugin {target.plugin!r} does not run {found.affected(what, 'operator')}, PyTorch "
        f"does: {found.shown}"
    )


def not_compiled(
    target: Target,
    record: GraphRecord,
    segment: SegmentRecord,
    error: Exception,
    graph: fx.Graph,
) -> None:
    """Record, and tell, that a segment cannot be compiled: it runs on the host.

    Args:
        target: of the graph.
        record: of the graph.
        segment: of the graph.
        error: why.
        graph: of the segment.

    Raises:
        FallbackForbidden: the user's options forbid it.
        Exception: the error, where other processes expect this one to run the program.
    """
    if target.exchanges(graph):
        raise error
    segment.placement = "host"
    segment.failed(f"it could not be compiled: {error}")
    tell(target, record, name_of_segment(record), segment.fallback_reasons[-1:])


def failed_in_a_call(
    target: Target,
    record: GraphRecord,
    segment: SegmentRecord,
    error: PjrtBridgeError,
    *,
    together: bool = False,
) -> None:
    """Record, and tell, that the device failed in a call of a segment.

    Args:
        target: of the graph.
        record: of the graph.
        segment: of the graph.
        error: the failure.
        together: other processes ran the program with this one; they do not compute on the host.

    Raises:
        PjrtBridgeError: the failure, where the user's options forbid the host.
    """
    if together or target.options.fallback == "error":
        raise error
    segment.failed(f"it failed on the device: {error}")
    tell(target, record, name_of_segment(record), segment.fallback_reasons[-1:])
