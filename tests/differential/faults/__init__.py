"""Faults that are planted into the bridge, to see that they are found.

Most change what a compiled graph gives, or what one lowering writes.
"""

from __future__ import annotations

from tests.differential.faults import lowerings, results
from tests.differential.faults.registry import FAULTS, MODES, WANTED, plant

__all__ = ["FAULTS", "MODES", "WANTED", "lowerings", "plant", "results"]
