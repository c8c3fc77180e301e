"""One way to run a case, in a process of its own, which does what it is told and nothing meanwhile.

It reads requests from standard input and answers on what was standard output, one JSON object a
line. What libraries and the user's module print goes to standard error.

    {"do": "prepare", "way": NAME, "target": NAME, ...}  {"seconds": of the first call}
    {"do": "time", "repeats": N}                         {"seconds": ..., "first_token": ...}
    {"do": "programs"}                                   {"programs": compiled so far}
    {"do": "save", "path": FILE}                         {}
    {"do": "compare", "path": FILE}                      {"difference": ...}
    {"do": "account"}                                    see `Way.account`

An answer may be {"failed": REASON} instead. The end of its input ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pjrt_bridge import child_processes
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.comparing.case import case_of
from pjrt_bridge.torch_interop.comparing.ways import Way


class Worker:
    """The state of a worker between one request and the next."""

    def __init__(self) -> None:
        self._results: list[Any] = []
        self._way: Way | None = None
        self._actions: dict[str, Callable[..., dict[str, Any]]] = {
            "prepare": self._prepare,
            "time": lambda repeats: self._ready.time(repeats),
            "programs": lambda: {"programs": self._ready.programs()},
            "save": self._save,
            "compare": self._compare,
            "account": lambda: self._ready.account(),
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request; an exception becomes an answer, too."""
        try:
            return self._actions[request.pop("do")](**request)
        except Exception as error:
            first = (str(error).strip() or "no message").splitlines()[0]
            return {"failed": f"{type(error).__name__}: {first}"}

    @property
    def _ready(self) -> Way:
        assert self._way is not None, "nothing was prepared"
        return self._way

    def _prepare(
        self,
        way: str,
        target: str,
        inputs: Sequence[str],
        options: Mapping[str, Any],
        train: bool,
        new_tokens: int | None,
    ) -> dict[str, Any]:
        case = case_of(target, inputs)
        self._way = Way(way, case, options, train=train, new_tokens=new_tokens)
        started = time.perf_counter()
        results = self._way.call()
        seconds = time.perf_counter() - started
        self._results = [
            item.detach().clone()
            for item in compat.tree_leaves(results)
            if isinstance(item, torch.Tensor)
        ]
        return {"seconds": seconds}

    def _save(self, path: str) -> dict[str, Any]:
        torch.save(self._results, path)
        return {}

    def _compare(self, path: str) -> dict[str, Any]:
        expected = torch.load(path, weights_only=True)
        shapes = [tuple(item.shape) for item in self._results]
        if shapes != [tuple(item.shape) for item in expected]:
            return {"difference": float("inf")}
        pairs = zip(self._results, expected, strict=True)
        return {"difference": max((difference(a, b) for a, b in pairs), default=0.0)}


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference of two tensors, as a part of the largest number that is expected."""
    wide = torch.complex128 if expected.is_complex() else torch.float64
    one, other = found.to(wide), expected.to(wide)
    same = (one == other) | (one.isnan() & other.isnan())
    gaps = (one - other).abs()[~same]
    if not gaps.numel():
        return 0.0
    largest = float(other.abs().nan_to_num(posinf=0.0).max())
    gap = float(gaps.max())
    return float("inf") if gap != gap else gap / max(largest, 1e-30)


if __name__ == "__main__":
    child_processes.serve(Worker().answer)
