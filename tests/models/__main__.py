"""`python -m tests.models`: small models of every sort through the `pjrt` backend.

Prints where each of them runs, and what differs from the file of expected outcomes. With `--write`
the file is written anew; wrong results are never written into it. Names restrict the run to cases
whose name, such as `gpt2 training`, contains one of them.
"""

from __future__ import annotations

import sys

from tests.models import expectations, sweep
from tests.sweeping.command import Sweeping, main

MODELS = Sweeping(
    program="python -m tests.models",
    about=__doc__,
    start=sweep.start,
    file=expectations.FILE,
    load=expectations.load,
    dump=expectations.dump,
    table=expectations.table,
)

if __name__ == "__main__":
    sys.exit(main(MODELS))
