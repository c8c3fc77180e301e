"""The example on a mesh: it trains, and all that belongs to a parameter lies as this does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_trains_over_four_devices() -> None:
    source = "from examples.sharding import main; main()"
    done = forked.parent(forked.TORCH).run(source, ["cpu"], timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.findall(r"loss (\S+) at first, (\S+) in the end", done.stdout)[0])
    assert last < first / 2
    places = re.findall(r"(\w+) of the first layer: (.*)", done.stdout)
    assert places == [
        (name, "[tp, dp] over Mesh(dp=2, tp=2)") for name in ("weight", "gradient", "average")
    ]
    assert re.search(r"\d+ all-gather: \d+ bytes", done.stdout)
