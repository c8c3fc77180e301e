"""`python -m tests.errors`: what eager PyTorch refuses, through the `pjrt` backend.

Every entry of torch's operator database is called with its own inputs that have to raise, with
sizes of 0, other element types and indices that are out of range. Where eager raises the compiled
call has to raise, else to give what eager gives. `--write` writes the file of expected outcomes
anew. Names restrict the run to cases whose name contains one of them.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping

from tests.errors import expectations
from tests.errors.case import Case
from tests.errors.sweep import Sweep
from tests.sweeping.command import Sweeping, main


def _dump(outcomes: Mapping[Case, str]) -> str:
    return expectations.dump(outcomes, importlib.metadata.version("torch").split("+")[0])


ERRORS = Sweeping(
    program="python -m tests.errors",
    about=__doc__,
    start=Sweep,
    file=expectations.FILE,
    load=expectations.load,
    dump=_dump,
    table=expectations.table,
)

if __name__ == "__main__":
    sys.exit(main(ERRORS))
