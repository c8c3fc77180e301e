"""One side in a process of its own, which does what it is told and nothing meanwhile.

Requests and answers are lines of JSON, as those of `benchmarks.worker`:

    {"do": "make", "work": {...}, "side": NAME, "device": TYPE}  {}: nothing is compiled
    {"do": "first", "results": PATH}   {"seconds": of the first call}; results of the first calls
        are written to this file
    {"do": "time", "repeats": N, "wait": "each" | "end" | "untimed"}    {"seconds": of all N calls}
    {"do": "memory"}                   {"used": bytes, "taken": bytes}, or {}
    {"do": "reference", "work": {...}, "results": PATH}          {"flops": N, "weights": bytes}
    {"do": "peaks", "device": TYPE, "small": BOOL}               {form: FLOP/s, "copy": bytes/s}
    {"do": "beside", "device": TYPE, "small": BOOL}              {what: bytes}
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.side import Side
from benchmarks.gpu.works import Work
from benchmarks.worker import serve

_SAID = 600
"""Characters of an error that are told."""


class Worker:
    """What was made ready, between one request and the next."""

    def __init__(self) -> None:
        self._side: Side | None = None
        self._task = ""
        self._actions: dict[str, Callable[..., dict[str, Any]]] = {
            "make": self._make,
            "first": self._first,
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

    def _make(self, work: dict[str, Any], side: str, device: str) -> dict[str, Any]:
        self._side = None
        self._task = work["task"]
        self._side = _made(_work(work), side, device)
        return {}

    def _first(self, results: str) -> dict[str, Any]:
        made = self._ready()
        begun = time.perf_counter()
        found = made.call()
        made.wait(found)
        seconds = time.perf_counter() - begun
        compared = made.floats(found)
        if self._task in ("training", "decoding"):
            from benchmarks.gpu.models import CHECKED

            several = [compared]
            for _ in range(CHECKED - 1):
                made.again()
                several.append(made.floats(made.call()))
            compared = np.stack(several)
        np.save(results, compared)
        return {"seconds": seconds}

    def _time(self, repeats: int, wait: str) -> dict[str, Any]:
        side = self._ready()
        call, waited = side.call, side.wait
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
        return self._ready().memory()

    def _ready(self) -> Side:
        assert self._side is not None, "nothing was made"
        return self._side


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
    serve(lambda: Worker().answer)


if __name__ == "__main__":
    main()
