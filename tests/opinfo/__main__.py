"""`python -m tests.opinfo`: every operator of torch's database through the `pjrt` backend.

Prints a table of what became of them, and what differs from the file of expected outcomes. With
`--write` the file is written anew; wrong results are never written into it. Names restrict the
run to cases whose name contains one of them.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping

from tests.opinfo import expectations
from tests.opinfo.case import Case
from tests.opinfo.sweep import Sweep
from tests.sweeping.command import Sweeping, main


def _dump(outcomes: Mapping[Case, str]) -> str:
    return expectations.dump(outcomes, importlib.metadata.version("torch").split("+")[0])


OPERATORS = Sweeping(
    program="python -m tests.opinfo",
    about=__doc__,
    start=Sweep,
    file=expectations.FILE,
    load=expectations.load,
    dump=_dump,
    table=expectations.table,
)

if __name__ == "__main__":
    sys.exit(main(OPERATORS))
