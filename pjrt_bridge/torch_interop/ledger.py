"""The graphs that the `pjrt` backend compiled in this process."""

from __future__ import annotations

from pjrt_bridge.mixed.records import Ledger
from pjrt_bridge.report.data import GraphReport

LEDGER = Ledger()

EAGER = Ledger()
"""Of the operators that ran on resident tensors without being compiled by the user."""


def compiled_graphs() -> tuple[GraphReport, ...]:
    """Reports on the graphs that were compiled since the last reset (the last 1000).

    Oldest first; a graph whose sizes differ from call to call is in it once for each set of sizes.
    """
    return tuple(record.report() for record in LEDGER.graphs)
