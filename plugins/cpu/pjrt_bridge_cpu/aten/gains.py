"""Gains of calls of PyTorch's kernels, as they were measured on a processor.

A measurement is the time of a call in units of that of XLA's own code for the same, by kind and
size. `timing` makes them; `gains.json` has those of known processors, as `outcomes` has what is
right there. Where nothing was measured, the rules' least sizes alone decide.

`python -m pjrt_bridge_cpu.aten.timing --ship` measures here, and adds or replaces the entry
of this processor.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pjrt_bridge.dtypes import DType
from pjrt_bridge_cpu.aten import outcomes
from pjrt_bridge_cpu.aten.calls import Load
from pjrt_bridge_cpu.aten.processor import maker

FILE = Path(__file__).with_name("gains.json")

FORMAT = "5"
"""Changes with the kinds that are measured, and with how they are."""

Ratios = Mapping[str, Mapping[int, float]]
"""By kind and element type, such as `topk float32`, and by size: the time of a call in units of
that of XLA's code. Below 1 the call is faster."""

Measured = Callable[[], Ratios]
"""What is known by now."""


def nothing() -> Ratios:
    """As where nothing was measured."""
    return {}


def name_of(load: Load, dtype: DType) -> str:
    """The name of a kind for an element type."""
    return f"{load.kind} {dtype}"


def ratio(ratios: Ratios, load: Load, dtype: DType) -> float | None:
    """The time of a call in units of XLA's, between the sizes that were measured.

    It is taken as a power of the size there, and beyond them as what it is at the nearest one.
    None where the kind was not measured.
    """
    points = sorted(ratios.get(name_of(load, dtype), {}).items())
    if not points:
        return None
    if load.size <= points[0][0]:
        return points[0][1]
    for (low, before), (high, after) in pairwise(points):
        if load.size <= high:
            share = math.log(load.size / low) / math.log(high / low)
            return before * math.exp(share * math.log(after / before))
    return points[-1][1]


def read(text: str | bytes) -> dict[str, dict[int, float]] | None:
    """Ratios as `written` gave them, or None where these are none."""
    try:
        return _parsed(json.loads(text))
    except (ValueError, AttributeError, TypeError):
        return None


def _parsed(found: Any) -> dict[str, dict[int, float]]:
    return {
        str(kind): {int(size): _positive(value) for size, value in points.items()}
        for kind, points in found.items()
    }


def written(ratios: Ratios) -> str:
    """Ratios as text."""
    return json.dumps(ratios)


def _positive(value: float) -> float:
    if not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"expected a positive ratio, found {value!r}")
    return float(value)


@dataclass(frozen=True)
class Shipped:
    """What the package ships of a processor.

    Attributes:
        ratios: the gains.
        format: `FORMAT` when they were measured.
    """

    ratios: Ratios
    format: str = FORMAT


def shipped(library: Path) -> Shipped | None:
    """What the package ships for a build of the plugin here; None if there is nothing."""
    key = None if os.environ.get("XLA_FLAGS") else key_of(library)
    return None if key is None else entries().get(key)


Key = tuple[str, ...]


def key_of(library: Path) -> Key | None:
    """Under which measurements of this machine would be shipped; None without PyTorch's library.

    The BLAS chooses its kernels by the maker of the processor, beside the instructions.
    """
    key = outcomes.key_of(library)
    return None if key is None else (*key, maker())


@cache
def entries() -> dict[Key, Shipped]:
    """All that is shipped."""
    try:
        found = json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {
        tuple(one[name] for name in _KEY): Shipped(_parsed(one["ratios"]), one["format"])
        for one in found
    }


_KEY = ("plugin", "torch", "instructions", "maker")


def ship(key: Key, ratios: Ratios) -> None:
    """Add or replace the entry of a key."""
    every = {**entries(), key: Shipped(ratios)}
    data = [
        {**dict(zip(_KEY, key, strict=True)), "format": found.format, "ratios": found.ratios}
        for key, found in sorted(every.items(), key=lambda entry: entry[0])
    ]
    FILE.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    entries.cache_clear()
