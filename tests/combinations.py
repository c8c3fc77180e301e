"""All combinations of several factors, of which `make test` runs a part that covers their groups.

A defect mostly needs the values of one or two factors to show. So `make test` runs as few
combinations as bring every group of `strength` values together, and `make test-full` runs all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

Chosen = tuple[str, ...]
"""The name of one value of each factor."""


def combinations(*factors: Mapping[str, Any], strength: int = 2) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`, one of each combination; the others are slow.

    Args:
        factors: values by their names.
        strength: how many values are brought together in every way by what is not slow.
    """
    fast = covering([tuple(factor) for factor in factors], strength)
    return [
        pytest.param(
            *(factor[name] for factor, name in zip(factors, chosen, strict=True)),
            id="-".join(chosen),
            marks=[] if chosen in fast else [pytest.mark.slow],
        )
        for chosen in itertools.product(*factors)
    ]


def covering(factors: Sequence[Sequence[str]], strength: int) -> set[Chosen]:
    """Few combinations that have every group of `strength` values of different factors.

    The next is always one that has most of the groups that are missing, so the set follows from the
    names alone.
    """
    every = list(itertools.product(*factors))
    missing = {group for chosen in every for group in groups(chosen, strength)}
    found: set[Chosen] = set()
    while missing:
        best = max(every, key=lambda chosen: len(missing.intersection(groups(chosen, strength))))
        found.add(best)
        missing.difference_update(groups(best, strength))
    return found


def groups(chosen: Chosen, strength: int) -> Iterator[tuple[tuple[int, str], ...]]:
    """The groups of values that a combination has, each value with its factor's number."""
    return itertools.combinations(enumerate(chosen), strength)
