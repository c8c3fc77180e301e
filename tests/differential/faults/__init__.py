"""Faults that are planted into the bridge, to see that they are found.

Most change what a compiled graph gives, or what one lowering writes.
"""

from __future__ import annotations

from tests.differential.faults import lowerings as lowerings
from tests.differential.faults import results as results
from tests.differential.faults.registry import FAULTS as FAULTS
from tests.differential.faults.registry import WANTED as WANTED
from tests.differential.faults.registry import plant as plant
