"""Python processes of the bridge's own, which try what could end this one.

`python -m` looks for modules in the working directory first. Reading a file in a folder that
came from elsewhere must not run a `select.py` in that folder, so these processes find modules
where this one does, and nowhere else.

`serve` is what a process that answers requests does. How a process ended is put into words here,
too.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TextIO


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module in a new process, to be used with `environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which a new process finds the modules that this one finds.

    Args:
        more: further variables.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(more or {})}


def answers() -> TextIO:
    """The stream on which a worker answers: standard output, of which nobody else has the use.

    What else is written there, by a plugin or a framework, goes to standard error from now on.
    """
    found = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return found


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests from standard input on standard output, one JSON object a line, to its end.

    Warnings are not shown.

    Args:
        answer: what a request leads to.
    """
    stream = answers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in sys.stdin:
            stream.write(json.dumps(answer(json.loads(line))) + "\n")
            stream.flush()


def ended(status: int) -> str:
    """An exit status in words; a negative one is a signal's, as `subprocess` has it."""
    if status >= 0:
        return f"ended the process with status {status}"
    try:
        return f"crashed ({signal.Signals(-status).name})"
    except ValueError:
        return f"crashed (signal {-status})"


_LONGEST = 300
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(
    r"\s*(---|@ |#\d|\*\*\*|0x[0-9a-f]+|backtrace:|terminate called)", re.IGNORECASE
)
_FATAL = (
    # absl and glog: F0000 00:00:00.000000 123 file.cc:45] text
    re.compile(r"F\d{4} \S+ +\d+ \S+:\d+\] (.+)"),
    # spdlog: time | critical | ... | text
    re.compile(r".*\| *(?:critical|fatal) *\|(?:.*\|)? *(.+)", re.IGNORECASE),
    re.compile(r"\s*what\(\): +(.+)"),
)
"""Lines that say why a process is about to end, the best ones first."""
_LABEL = re.compile(r"[A-Z_]*FATAL *: *")
_PLACE = re.compile(r" \([\w./+-]+:\d+\)$")


def last_words(text: str) -> str:
    """Why a process died, from what it wrote to standard error; empty where it wrote nothing.

    Without frames of the stack, labels, and places in its sources.
    """
    lines = [_ESCAPE.sub("", line).rstrip() for line in text.splitlines()]
    said = [line for line in lines if line.strip() and not _FRAME.match(line)]
    found = next(
        (match[1] for fatal in _FATAL for line in said if (match := fatal.match(line))),
        said[-1] if said else "",
    )
    return _PLACE.sub("", _LABEL.sub("", found.strip()))[:_LONGEST]
