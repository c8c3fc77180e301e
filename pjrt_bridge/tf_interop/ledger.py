"""The functions that the bridge compiled in this process."""

from __future__ import annotations

from pjrt_bridge.mixed.records import Ledger

LEDGER = Ledger()
