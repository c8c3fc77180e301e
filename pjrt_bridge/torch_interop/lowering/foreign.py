"""Foreign functions: each becomes a function of the program."""

from __future__ import annotations

from pjrt_bridge.torch_interop.foreign_functions import OPERATOR, PORTABLE, lowering_for
from pjrt_bridge.torch_interop.lowering.registry import lowering

call = lowering(OPERATOR)(lowering_for(PORTABLE))
