"""The examples run, and say what they should."""

from __future__ import annotations

import re

import pytest

from examples import decode_resize, lookup_embedding

# What Rich would cut to the width of a terminal.
pytestmark = pytest.mark.usefixtures("wide")


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_words_are_looked_up_and_embedded(capsys: pytest.CaptureFixture[str]) -> None:
    lookup_embedding.main()
    shown = capsys.readouterr().out
    losses = re.findall(r"step +\d+ +(\S+) +(\S+)", shown)
    assert len(losses) == 4
    assert all(one == other for one, other in losses)
    assert float(losses[-1][0]) < 0.1
    assert re.search(r"is it cold up north +│ weather", shown)
    assert "LookupTableFindV2" in shown
    assert re.search(r"copied +0 B", shown)


def test_images_are_decoded_and_classified(capsys: pytest.CaptureFixture[str]) -> None:
    decode_resize.main()
    shown = capsys.readouterr().out
    for name in decode_resize.SHAPES:
        assert re.search(rf"{name} \d+x\d+ +│ +\d+ +│ {name} ", shown), shown
    assert all(float(one) < 1e-5 for one in re.findall(r"│ (\de[-+]\d\d) ", shown))
    assert "DecodeJpeg" in shown
    assert re.search(r"copied +0 B", shown)
