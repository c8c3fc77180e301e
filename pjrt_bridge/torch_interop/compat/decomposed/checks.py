"""Operators that give nothing and raise for some data, kept in graphs while torch traces them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx

from pjrt_bridge.torch_interop.compat.operators import operator

CHECKS = ("aten._linalg_check_errors.default", "aten._assert_async.default")
"""The operators that torch would drop from graphs."""


@contextmanager
def plain_checks() -> Iterator[None]:
    """Keep checks while a graph is traced, as plain calls.

    Torch (2.13) has those of linear algebra hand on tokens of their order. Exported programs have
    no place for these, and joint graphs with them cannot be traced.
    """
    effects = _effects()
    before = None if effects is None else effects.effect
    if effects is not None:
        effects.register(None)
    try:
        with _kept():
            yield
    finally:
        if effects is not None:
            effects.register(before)


@contextmanager
def checks_kept() -> Iterator[None]:
    """Keep checks while a graph is traced: with tokens where torch has these, or as plain calls."""
    effects = _effects()
    if effects is not None and effects.effect is not None:
        yield
        return
    with _kept():
        yield


def _effects() -> Any:
    """Torch's record of the effects of checks of linear algebra; None if it has no records."""
    try:
        from torch._library.simple_registry import singleton

        return singleton.find("aten::_linalg_check_errors").effect
    except (ImportError, AttributeError):
        return None


@contextmanager
def _kept() -> Iterator[None]:
    """Have torch take checks for calls with effects."""
    kept = fx.node._side_effectful_functions
    new: set[Any] = set(filter(None, map(operator, CHECKS))) - kept
    kept |= new
    try:
        yield
    finally:
        kept -= new
