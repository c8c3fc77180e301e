"""`python -m tests.opinfo`: every operator of torch's database through the `pjrt` backend.

Prints a table of what became of them, and what differs from the file of expected outcomes. With
`--write` the file is written anew; wrong results are never written into it. Names restrict the
run to cases whose name contains one of them.

`--wide` takes every element type that torch lists, every direction, operators on lists of tensors,
and up to `--samples` samples and reference inputs of each, by the tolerances of torch's own tests.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Mapping
from functools import partial

from tests.opinfo import expectations, wide
from tests.opinfo.case import Case
from tests.opinfo.sweep import Sweep, WideSweep
from tests.sweeping.command import Sweeping, main

_TORCH = importlib.metadata.version("torch").split("+")[0]


def _dump(outcomes: Mapping[Case, str]) -> str:
    return expectations.dump(outcomes, _TORCH)


def _dump_wide(outcomes: Mapping[Case, str]) -> str:
    return wide.dump(outcomes, _TORCH)


OPERATORS = Sweeping(
    program="python -m tests.opinfo",
    about=__doc__,
    start=Sweep,
    file=expectations.FILE,
    load=expectations.load,
    dump=_dump,
    table=expectations.table,
)


def _wide(samples: int) -> Sweeping[Case]:
    return Sweeping(
        program="python -m tests.opinfo --wide",
        about=__doc__,
        start=partial(WideSweep, samples),
        file=wide.FILE,
        load=wide.load,
        dump=_dump_wide,
        table=wide.table,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--samples", type=int, default=wide.SAMPLES)
    options, left = parser.parse_known_args()
    sys.exit(main(_wide(options.samples) if options.wide else OPERATORS, left))
