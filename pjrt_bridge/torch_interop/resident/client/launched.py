"""Which of the processes of this machine this one is, as launchers such as torchrun say."""

from __future__ import annotations

from pjrt_bridge import environment
from pjrt_bridge.errors import VariableError

_RANK = "LOCAL_RANK"
_COUNT = "LOCAL_WORLD_SIZE"


def rank() -> int:
    """The number of this process, from `LOCAL_RANK`; 0 without a launcher.

    Raises:
        VariableError: it is no number.
    """
    return max(_number(_RANK, -1), 0)


def processes() -> int:
    """How many processes there are, from `LOCAL_WORLD_SIZE`, or those up to this one.

    Raises:
        VariableError: a variable is no number.
    """
    # Accelerate's launcher and some users set -1 for none.
    own = _number(_RANK, -1)
    return max(own + 1, _number(_COUNT, 1) if own >= 0 else 1)


def _number(variable: str, without: int) -> int:
    found = environment.value(variable)
    if not found:
        return without
    try:
        return int(found)
    except ValueError:
        raise VariableError(f"{variable}: found {found!r}, expected a number") from None
