"""One side in a process of its own, which does what it is told and nothing meanwhile.

Requests and answers are lines of JSON, as those of `benchmarks.worker`:

    {"do": "prepare", "work": {...}, "side": NAME, "device": TYPE, "results": PATH}
        {"made": s, "first": s}            the results of the first calls are written to PATH.npy
    {"do": "time", "repeats": N, "wait": "each" | "end" | "untimed"}    {"seconds": of all N calls}
    {"do": "memory"}                                {"used": bytes, "taken": bytes}, or {}
    {"do": "reference", "work": {...}, "results": PATH}          {"flops": N, "weights": bytes}
    {"do": "peaks", "device": TYPE, "small": BOOL}               {form: FLOP/s, "copy": bytes/s}
    {"do": "beside", "device": TYPE, "small": BOOL}              {what: bytes}
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.side import Side
from benchmarks.gpu.works import Work
from benchmarks.worker import own_output

_SAID = 600
"""Characters of an error that are told."""


class Worker:
    """What was made ready, between one request and the next."""

    def __init__(self) -> None:
        self._side: Side | None = None
        self._actions: dict[str, Callable[..., dict[str, Any]]] = {
            "prepare": self._prepare,
            "time": self._time,
            "memory": self._memory,
            "reference": _reference,
            "peaks": _peaks,
            "beside": _beside,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a request leads to; an exception becomes an answer, too."""
        try:
            return self._actions[request.pop("do")](**request)
        except ImportError as error:
            traceback.print_exc()
            return {"absent": str(error)}
        except Exception as error:
            traceback.print_exc()
            return {"failed": f"{type(error).__name__}: {str(error).strip()[:_SAID]}"}

    def _prepare(self, work: dict[str, Any], side: str, device: str, results: str) -> Any:
        self._side = None
        declared = _work(work)
        begun = time.perf_counter()
        made = _made(declared, side, device)
        ready = time.perf_counter()
        found = made.call()
        made.wait(found)
        first = time.perf_counter() - ready
        compared = [made.floats(found)]
        if declared.task in ("training", "decoding"):
            from benchmarks.gpu.models import CHECKED

            for _ in range(CHECKED - 1):
                made.again()
                compared.append(made.floats(made.call()))
            np.save(results, np.stack(compared))
        else:
            np.save(results, compared[0])
        self._side = made
        return {"made": ready - begun, "first": first}

    def _time(self, repeats: int, wait: str) -> dict[str, Any]:
        assert self._side is not None, "nothing was prepared"
        call, waited = self._side.call, self._side.wait
        begun = time.perf_counter()
        if wait == "each":
            for _ in range(repeats):
                waited(call())
        else:
            for _ in range(repeats):
                found = call()
            if wait == "end":
                waited(found)
        seconds = time.perf_counter() - begun
        waited(found if wait != "each" else call())
        return {"seconds": seconds}

    def _memory(self) -> dict[str, Any]:
        assert self._side is not None, "nothing was prepared"
        return self._side.memory()


def _work(fields: dict[str, Any]) -> Work:
    return Work(**{**fields, "sides": tuple(fields["sides"])})


def _made(work: Work, side: str, device: str) -> Side:
    from benchmarks.gpu import torch_side

    torch_side.forget()
    if side == "jax":
        from benchmarks.gpu import jax_side

        return jax_side.prepare(work)
    return torch_side.prepare(work, side, device)


def _reference(work: dict[str, Any], results: str) -> dict[str, Any]:
    from benchmarks.gpu.reference import compute

    found, counts = compute(_work(work))
    np.save(results, found)
    return counts


def _peaks(device: str, small: bool) -> dict[str, Any]:
    from benchmarks.gpu.reference import peaks

    return peaks(device, small=small)


def _beside(device: str, small: bool) -> dict[str, Any]:
    from benchmarks.gpu.reference import beside

    return beside(device, small=small)


def main() -> None:
    """Serve until the input ends."""
    answers = own_output()
    warnings.simplefilter("ignore")
    worker = Worker()
    for line in sys.stdin:
        answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
