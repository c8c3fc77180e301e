"""What is not slow covers every group of values, with few combinations."""

from __future__ import annotations

import itertools

import pytest

from tests.combinations import combinations, covering, groups

FACTORS = [list("abcdefg"), list("xyz"), list("123")]


@pytest.mark.parametrize(("strength", "most"), [(1, 7), (2, 24), (3, 63)])
def test_every_group_is_covered(strength: int, most: int) -> None:
    found = covering(FACTORS, strength)
    wanted = {group for chosen in itertools.product(*FACTORS) for group in groups(chosen, strength)}
    assert {group for chosen in found for group in groups(chosen, strength)} == wanted
    assert len(found) <= most
    assert found == covering(FACTORS, strength)


def test_all_combinations_are_there_and_the_rest_is_slow() -> None:
    made = combinations({"a": 1, "b": 2}, {"x": 3, "y": 4}, strength=1)
    assert [(param.id, param.values, bool(param.marks)) for param in made] == [
        ("a-x", (1, 3), False),
        ("a-y", (1, 4), True),
        ("b-x", (2, 3), True),
        ("b-y", (2, 4), False),
    ]
