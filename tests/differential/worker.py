"""`python -m tests.differential.worker`: runs the programs that it is asked for, one a line."""

from __future__ import annotations

import gc
import json
import logging
import sys
import traceback
import warnings

from pjrt_bridge.child_processes import answers
from tests.differential import residing
from tests.differential.faults import plant
from tests.differential.generating import generate
from tests.differential.judging import judge
from tests.differential.kernels import call_kernels_everywhere
from tests.differential.messages import Answer, Request, plain, unpacked
from tests.dynamo import skip_guard_timing


def answer(request: Request) -> Answer:
    """Run what is asked for."""
    if request.given:
        program, mode = unpacked(request.given)
    else:
        try:
            program, mode = generate(request.seed, request.index), None
        except Exception:
            return Answer(invalid=" | ".join(traceback.format_exc().splitlines()[-6:]))
    with plant(request.planted):
        try:
            return judge(program, request.count, request.only, request.ignored, mode)
        finally:
            if request.planted:
                residing.forget()


def main() -> None:
    """Answer until standard input ends."""
    stream = answers()
    call_kernels_everywhere()
    warnings.simplefilter("ignore")
    skip_guard_timing()
    # Nobody reads what torch logs of exceptions, with the stack of each.
    logging.disable()
    # Collections of what stays, and of many small graphs, take an eighth of the time.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    for line in sys.stdin:
        values = json.loads(line)
        values["only"], values["ignored"] = tuple(values["only"]), tuple(values["ignored"])
        try:
            found = answer(Request(**values))
        except Exception:
            found = Answer(invalid=" | ".join(traceback.format_exc().splitlines()[-6:]))
        stream.write(json.dumps(plain(found)) + "\n")
        stream.flush()


if __name__ == "__main__":
    main()
