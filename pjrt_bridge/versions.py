"""Versions of installed distributions, which may run from a folder without being installed."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version(distribution: str) -> str:
    """The version of a distribution; empty where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
