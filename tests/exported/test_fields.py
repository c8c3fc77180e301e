"""Values of a manifest are read with their types, and refused with their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pjrt_bridge.errors import SavedModelError
from pjrt_bridge.exported.fields import LARGEST, JsonField

FILE = Path("manifest.json")


@pytest.mark.parametrize("value", [0, 7, LARGEST])
def test_numbers(value: int) -> None:
    assert JsonField(FILE, value).number() == value


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, [1], -1, LARGEST + 1])
def test_what_is_no_number_from_0_up(value: Any) -> None:
    """A truth value is an integer to Python, and none to a reader of JSON."""
    with pytest.raises(
        SavedModelError, match=f"'a.b': found .*, needed an integer from 0 to {LARGEST}"
    ):
        JsonField(FILE, value, "a.b").number()


def test_limits_are_included() -> None:
    field = JsonField(FILE, 3)
    assert field.number(3, 3) == 3
    for least, most in ((4, 9), (0, 2)):
        with pytest.raises(
            SavedModelError, match=f"found 3, needed an integer from {least} to {most}"
        ):
            field.number(least, most)


def test_scalars_keep_their_types() -> None:
    for value in (True, False, None, 1, -1, 1.5, "x"):
        found = JsonField(FILE, value).scalar()
        assert type(found) is type(value)
        assert found == value
    for value in ([], {}):
        with pytest.raises(SavedModelError, match="needed an integer"):
            JsonField(FILE, value).scalar()


def test_members_say_where_they_are() -> None:
    inner = JsonField(FILE, {"a": [{"b": 1}]})["a"].items(1)[0]["b"]
    assert (inner.path, inner.number()) == ("a[0].b", 1)
    with pytest.raises(SavedModelError, match=r"field 'a\[0\]': 'c' is missing"):
        _ = JsonField(FILE, {"a": [{"b": 1}]})["a"].items()[0]["c"]
    with pytest.raises(SavedModelError, match="needed a list of 2"):
        JsonField(FILE, [1]).items(2)
