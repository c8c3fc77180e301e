"""One competitor in a process of its own, which does what it is told and nothing meanwhile.

It reads requests from standard input and answers on what was standard output, one JSON object a
line. What libraries print goes to standard error.

    {"do": "prepare", "case": NAME, "competitor": NAME}  {}
    {"do": "time", "repeats": N}                         {"seconds": of all N calls}
    {"do": "memory", "repeats": N}                       {"bytes": at the peak of N calls}
    {"do": "figures", "family": NAME, "rounds": N}       {}
    {"do": "next"}                                       {"figure": {...}}, at the end null

An answer may be {"absent": REASON} or {"failed": REASON} instead. The end of its input ends it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from benchmarks import cases, resident
from benchmarks.competitors import Absent, Timer, competitor

if TYPE_CHECKING:
    from benchmarks.figure import Figure


class Worker:
    """What was made ready, between one request and the next."""

    def __init__(self) -> None:
        self._timer: Timer | None = None
        self._figures: Iterator[Figure] = iter(())
        self._actions: dict[str, Callable[..., dict[str, Any]]] = {
            "prepare": self._prepare,
            "time": self._time,
            "memory": self._memory,
            "figures": self._begin,
            "next": self._next,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a request leads to; an exception becomes an answer, too."""
        try:
            return self._actions[request.pop("do")](**request)
        except (Absent, ImportError) as error:
            return {"absent": str(error)}
        except Exception as error:
            first = (str(error).strip() or "no message").splitlines()[0]
            return {"failed": f"{type(error).__name__}: {first}"}

    def _prepare(self, case: str, competitor: str) -> dict[str, Any]:
        declared = cases.find(case)
        self._timer = _module(competitor).prepare(declared, competitor)
        return {}

    def _time(self, repeats: int) -> dict[str, Any]:
        assert self._timer is not None, "nothing was prepared"
        return {"seconds": self._timer(repeats)}

    def _memory(self, repeats: int) -> dict[str, Any]:
        resident.forget_peak()
        self._time(repeats)
        return {"bytes": resident.peak()}

    def _begin(self, family: str, rounds: int) -> dict[str, Any]:
        self._figures = importlib.import_module(f"benchmarks.{family}").figures(rounds)
        return {}

    def _next(self) -> dict[str, Any]:
        figure = next(self._figures, None)
        return {"figure": None if figure is None else asdict(figure)}


def _module(name: str) -> Any:
    return importlib.import_module(f"benchmarks.competitors.{competitor(name).module}")


def own_output() -> TextIO:
    """Standard output for answers alone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(make: Callable[[], Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
    """Answer each line of standard input, in JSON as the answers are, until it ends.

    Args:
        make: gives the function that answers, once standard output is for answers alone.
    """
    answers = own_output()
    warnings.simplefilter("ignore")
    answer = make()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def main() -> None:
    """Serve until the input ends."""
    serve(lambda: Worker().answer)


if __name__ == "__main__":
    main()
