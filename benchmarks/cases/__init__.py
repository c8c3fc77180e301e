"""Every case, by family, and what is asked of all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.case import Asked, Case, Suite
from benchmarks.cases import blocks, dispatch, kernels, memory, models, start, tensorflow, training

FAMILIES: Mapping[str, Sequence[Case]] = {
    "dispatch": dispatch.CASES,
    "kernels": kernels.CASES,
    "blocks": blocks.CASES,
    "models": models.CASES,
    "training": training.CASES,
    "tensorflow": tensorflow.CASES,
    "start": start.CASES,
    "memory": memory.CASES,
}
"""Cases by family, in the order in which they are measured."""

SUITE = Suite(
    ("kernels", "blocks", "models", "training"), Asked("pjrt", 1.0, ("eager", "inductor"))
)
"""Families that compute enough to be compared with eager PyTorch, and what is asked of them."""


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
