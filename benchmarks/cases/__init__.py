"""Every case, by family, and what is asked of all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.case import Asked, Case, Suite
from benchmarks.cases import (
    blocks,
    dispatch,
    kernels,
    kinds,
    memory,
    models,
    start,
    tensorflow,
    training,
    world,
)

FAMILIES: Mapping[str, Sequence[Case]] = {
    "dispatch": dispatch.CASES,
    "kernels": kernels.CASES,
    "blocks": blocks.CASES,
    "models": models.CASES,
    "training": training.CASES,
    "kinds": kinds.CASES,
    "tensorflow": tensorflow.CASES,
    "start": start.CASES,
    "memory": memory.CASES,
    **world.FAMILIES,
}
"""Cases by family, in the order in which they are measured."""

SUITE = Suite(
    "the suite",
    ("kernels", "blocks", "models", "training"),
    Asked("pjrt", 1.0, ("eager", "inductor")),
)
"""Families that compute enough to be compared with eager PyTorch, and what is asked of them."""

SUITES = (SUITE, kinds.SUITE, *world.SUITES)
"""All that is asked of several cases together."""

WORLD = tuple(world.FAMILIES)
"""Families of so many cases that a run measures a part of them, drawn by chance."""


def find(name: str) -> Case:
    """A case by its name.

    Raises:
        KeyError: there is none.
    """
    for cases in FAMILIES.values():
        for case in cases:
            if case.name == name:
                return case
    raise KeyError(f"no case {name!r}")
