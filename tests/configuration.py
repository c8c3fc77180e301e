"""What tests and sweeps run with: the defaults, in folders of their own, with one exception.

Programs are kept on disk, and nothing was measured on this machine, as before anybody calls
`pjrt-bridge calibrate`: what packages say decides what runs where. The exception: PyTorch's kernels
are called wherever they are right, whatever they gain on this processor, so that all of them are
tested and programs are the same on every machine. Tests of the gains run with the default.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pjrt_bridge import storage

ATEN = "PJRT_BRIDGE_ATEN"
CACHE = "PJRT_BRIDGE_CACHE"
CALIBRATION = "PJRT_BRIDGE_CALIBRATION"
BACKGROUND = "PJRT_BRIDGE_BACKGROUND"
BUILD = "PJRT_BRIDGE_CPU_BUILD"
SWITCHES = (ATEN, CACHE, CALIBRATION)
"""Variables of which each turns something off that is on."""

CHOSEN = (BUILD,)
"""Variables that choose for a whole run what is tested, and so stay as they are."""

_DECIDING = (
    "ATEN_",
    "DNNL_",
    "JAX_",
    "MKL_",
    "OMP_",
    "ONEDNN_",
    "PJRT_",
    "TORCH",
    "XLA_",
)
"""What the names of variables begin with that decide what runs, where, and with which numbers."""


def isolate(folder: Path, *, keep: tuple[str, ...] = ()) -> None:
    """Give this process, and those that it starts, what users have who set nothing.

    Args:
        folder: where programs are kept, and measurements would be.
        keep: variables that stay as the user has set them, beside those in `CHOSEN`.
    """
    for name in [name for name in os.environ if name.startswith(_DECIDING)]:
        if name not in (*CHOSEN, *keep):
            del os.environ[name]
    os.environ[CACHE] = str(folder / "cache")
    os.environ[CALIBRATION] = str(folder / "calibration")
    os.environ[ATEN] = "always"
    # Where nothing is shipped for a processor, kernels are tried before the first program, so that
    # all programs of a process are compiled alike.
    os.environ[BACKGROUND] = "off"


def keep_programs(folder: Path, kept: Path) -> bool:
    """Have compiled programs of a folder that was isolated kept in another one, for later runs.

    Their keys hold all that their compilation depends on. Nothing else is kept.

    Args:
        folder: that `isolate` was given.
        kept: is made; other users must not be able to write there.

    Returns:
        Whether they are kept: not where the bridge would not use the folder.
    """
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    if storage.objection(kept) is not None:
        return False
    programs = folder / "cache" / "executables"
    programs.parent.mkdir(mode=0o700)
    programs.symlink_to(kept.absolute(), target_is_directory=True)
    return True


@contextmanager
def isolated() -> Iterator[None]:
    """Be so isolated during a `with` block, in a folder that goes with it."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="pjrt_bridge-") as folder:
        isolate(Path(folder))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
