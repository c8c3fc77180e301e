"""The graphs that the `pjrt` backend compiled in this process."""

from __future__ import annotations

from pjrt_bridge.mixed.records import Ledger
from pjrt_bridge.report.data import GraphReport

LEDGER = Ledger()


def compiled_graphs() -> tuple[GraphReport, ...]:
    """What became of the graphs that were compiled since the last reset (the last 1000).

    Oldest first; a graph whose sizes differ from call to call is in it once for each set of sizes.
    """
    return tuple(record.report() for record in LEDGER.graphs)
