"""The worker process: runs the checks that its parent names, one by one, and says how they ended.

It reads names from standard input, one a line, and answers each with a line of JSON. The parent
knows which check it is in, so that this process may die at any moment.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

from pjrt_bridge import child_processes
from pjrt_bridge.errors import (
    ExtensionUnavailable,
    PjrtBridgeError,
    Unimplemented,
    UnsupportedDtype,
)
from pjrt_bridge_conformance.check import Check
from pjrt_bridge_conformance.context import Context, Subject
from pjrt_bridge_conformance.outcomes import AbsentDevice, Fail, Unsupported
from pjrt_bridge_conformance.report import Status
from pjrt_bridge_conformance.suite import CLIENT, LOAD, suite

_LACKING = (Unsupported, Unimplemented, UnsupportedDtype, ExtensionUnavailable)


def judge(check: Check, context: Context) -> tuple[Status, str]:
    """Run a check in this process; its status, and the reason where it is no pass."""
    try:
        check.function(context)
    except _LACKING as error:
        return Status.UNSUPPORTED, str(error)
    except AbsentDevice as error:
        return Status.ABSENT, str(error)
    except Fail as error:
        return Status.FAIL, str(error)
    except PjrtBridgeError as error:
        return Status.FAIL, f"{type(error).__name__}: {error}"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        return Status.FAIL, f"{type(error).__name__} at {where}: {error}"
    return Status.PASS, ""


def _answer(check: Check, context: Context) -> dict[str, Any]:
    start = time.perf_counter()
    status, reason = judge(check, context)
    seconds = time.perf_counter() - start
    # One line: compilers explain themselves in many.
    text = " ".join(reason.split())
    answer = {"name": check.name, "status": status, "reason": text, "seconds": seconds}
    if check.name in (LOAD, CLIENT) and status is Status.PASS:
        answer["about"] = context.about()
    return answer


def main() -> None:
    """Serve until standard input ends."""
    stream = child_processes.answers()
    subject = Subject.from_json(sys.argv[1])
    checks = suite(subject.modules)
    context = Context(subject)
    for line in sys.stdin:
        print(json.dumps(_answer(checks[line.strip()], context)), file=stream, flush=True)


if __name__ == "__main__":
    main()
