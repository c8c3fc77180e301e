"""Foreign functions: each becomes a function of the program."""

from __future__ import annotations

from collections.abc import Callable

from pjrt_bridge.torch_interop.foreign_functions import OPERATOR, PORTABLE, lowering_for
from pjrt_bridge.torch_interop.lowering.registry import Lowering, find_lowering, lowering

call = lowering(OPERATOR)(lowering_for(PORTABLE))


def portable_but_for(platform: str | None) -> Callable[[str], Lowering | None]:
    """Finds portable lowerings by name, and foreign functions as they are for a platform.

    Args:
        platform: such as `"tpu"`; None: as any plugin takes them.
    """
    if platform is None:
        return find_lowering
    own = lowering_for(platform)
    return lambda name: own if name == OPERATOR else find_lowering(name)
