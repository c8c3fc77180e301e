"""The example on torch's device: what is trained there is the same on the host."""

from __future__ import annotations

import re
from pathlib import Path

from tests import forked

ROOT = Path(__file__).parents[2]


def test_it_trains_and_comes_home() -> None:
    source = "import runpy; runpy.run_module('examples.device', run_name='__main__')"
    done = forked.parent(forked.TORCH).run(source, ["cpu"], timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.findall(r"loss (\S+) at first, (\S+) in the end", done.stdout)[0])
    assert last < first / 4
    (difference,) = re.findall(r"to the host: (\S+)", done.stdout)
    assert float(difference) < 1e-4
