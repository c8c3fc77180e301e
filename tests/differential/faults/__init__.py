"""Faults that are planted into the bridge, to see that they are found.

Most change what a compiled graph gives, or what one lowering writes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from tests.differential.faults import lowerings as lowerings
from tests.differential.faults import results as results
from tests.differential.faults.registry import FAULTS as FAULTS
from tests.differential.faults.registry import WANTED as WANTED


def plant(name: str) -> AbstractContextManager[None]:
    """The fault of a name; of no name, none."""
    return FAULTS[name]() if name else nullcontext()
