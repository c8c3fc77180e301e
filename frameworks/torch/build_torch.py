"""Builds pjrt-bridge-torch: the package `pjrt_bridge.torch_interop`, which lies beside the core's.

A wheel of both is larger than what many users need, and who uses no PyTorch has no use for half of
it. In a checkout the modules are copied here while an archive is built; a source archive of this
distribution has its own. An editable installation has the modules by that of pjrt-bridge.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401
    build_editable,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

_HERE = Path(__file__).parent
_PACKAGE = Path("pjrt_bridge", "torch_interop")

Settings = Mapping[str, Any] | None


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Build the source archive; the name of its file."""
    with _modules():
        return build_meta.build_sdist(sdist_directory, config_settings)


def build_wheel(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel; the name of its file."""
    with _modules():
        return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


@contextmanager
def _modules() -> Iterator[None]:
    if (_HERE / "PKG-INFO").exists():  # An unpacked source archive.
        yield
        return
    copies = _HERE / _PACKAGE.parts[0]
    # Of a build that was interrupted: it may be older than the modules are.
    shutil.rmtree(copies, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__")
    try:
        shutil.copytree(_HERE.parent.parent / _PACKAGE, _HERE / _PACKAGE, ignore=ignored)
        yield
    finally:
        shutil.rmtree(copies, ignore_errors=True)
