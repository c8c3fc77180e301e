"""Calls an operator with arguments that it may refuse, in eager and compiled."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils import _pytree as pytree

from tests.comparing import EXACT, Tolerance
from tests.errors import calls
from tests.errors.case import Case
from tests.errors.exceptions import EXCEPTIONS
from tests.opinfo import cases
from tests.opinfo.cases import Sample
from tests.opinfo.exact import is_as_near, widened
from tests.opinfo.running import Backend, Filled, decomposed
from tests.opinfo.ties import SPECTRAL, differ_in_ties
from tests.sweeping.comparing import Numbers, Ran, differences
from tests.sweeping.placed import line_of, name_of
from tests.sweeping.worker import Verdict

_ORACLES: tuple[Backend, ...] = ("aot_eager", decomposed)
"""Backends that run torch's graphs in PyTorch, whole and as they are taken apart."""


def run_case(case: Case, info: Any) -> Verdict:
    """Make the calls of a case; the outcomes say how many of them went how."""
    started = time.perf_counter()
    verdict = Verdict()
    run = _Run(case, info, verdict)
    made = calls.calls(info, case)
    run.all(made)
    verdict.outcomes |= {f"{word} {number}" for word, number in run.counts.items()}
    verdict.outcomes |= set() if made else {"none"}
    verdict.seconds = time.perf_counter() - started
    return verdict


class _Run:
    def __init__(self, case: Case, info: Any, verdict: Verdict) -> None:
        self._case = case
        self._operator = info.op
        self._tolerance = partial(cases.tolerance, info)
        self._verdict = verdict
        self.counts: Counter[str] = Counter()

    def all(self, samples: list[Sample]) -> None:
        """Make all calls; those that eager accepts as one graph, which is fast."""
        accepted = []
        for number, sample in enumerate(samples):
            try:
                expected = self._execute(self._function, [sample])
            except Exception as error:
                self._refused(number, sample, error)
            else:
                accepted.append((number, sample, expected))
        if len(accepted) > 1 and self._all_right([sample for _, sample, _ in accepted]):
            self.counts["right"] += len(accepted)
            return
        for number, sample, expected in accepted:
            self._accepted(number, sample, expected)

    def _refused(self, number: int, sample: Sample, error: Exception) -> None:
        """A call that eager refuses has to raise what eager raises."""
        ours = self._error("pjrt", sample)
        if ours is not None and _is_family(ours, error):
            self.counts["raises"] += 1
            return
        theirs = self._error("aot_eager", sample)
        if ours is None and theirs is None:
            self.counts["torch-accepts"] += 1
        elif ours is not None and theirs is not None and _is_family(ours, theirs):
            self.counts["raises"] += 1
        elif theirs is not None and isinstance(ours, _TORCHS) and not _is_compilers(ours):
            self.counts["raises-other"] += 1
        elif ours is None and self._case in EXCEPTIONS:
            self.counts["accepted"] += 1
        else:
            said = "nothing" if ours is None else f"{name_of(ours)}: {line_of(ours)}"
            self._problem(number, f"{said}, eager raises {name_of(error)}: {line_of(error)}")

    def _accepted(self, number: int, sample: Sample, expected: Ran) -> None:
        """A call that eager accepts has to give what eager gives."""
        try:
            found = self._compiled("pjrt", [sample])
        except Exception as error:
            theirs = self._error("aot_eager", sample)
            if theirs is not None and _is_family(error, theirs):
                self.counts["torch-raises"] += 1
            else:
                self._problem(number, f"{name_of(error)}: {line_of(error)}")
            return
        trouble = differences(found, expected, self._tolerance_for(sample), Numbers.ALL)
        alike = not trouble or differ_in_ties(found, expected, sample)
        if alike or self._is_rounded(sample, found, expected):
            self.counts["right"] += 1
        elif self._is_undetermined(sample, expected):
            self.counts["undetermined"] += 1
        elif any(self._as_compiled_by(backend, sample, found) for backend in _ORACLES):
            self.counts["torch-differs"] += 1
        else:
            self._problem(number, trouble[0])

    def _is_rounded(self, sample: Sample, found: Ran, expected: Ran) -> bool:
        """Whether all is as near to the results in double precision as eager's."""
        try:
            exact = self._execute(self._function, [widened(sample)])
        except Exception:
            return False
        return is_as_near(found, expected, exact, self._tolerance)

    def _as_compiled_by(self, backend: Backend, sample: Sample, found: Ran) -> bool:
        try:
            return not self._compare(found, self._compiled(backend, [sample]))
        except Exception:
            return False

    def _all_right(self, samples: list[Sample]) -> bool:
        try:
            expected = self._execute(self._function, samples)
            return not self._compare(self._compiled("pjrt", samples), expected)
        except Exception:
            return False

    def _is_undetermined(self, sample: Sample, expected: Ran) -> bool:
        """Whether values depend on the seed, on what new memory holds, or on a choice of signs."""
        if self._case.entry in SPECTRAL:
            return True
        with Filled(0):
            zeros = self._execute(self._function, [sample])
        with Filled(1):
            ones = self._execute(self._function, [sample])
        others = (zeros, ones, self._execute(self._function, [sample], seed=1))
        return any(self._compare(other, expected) for other in others)

    def _error(self, backend: Backend, sample: Sample) -> Exception | None:
        try:
            self._compiled(backend, [sample])
        except Exception as error:
            return error
        return None

    def _compiled(self, backend: Backend, samples: list[Sample]) -> Ran:
        torch._dynamo.reset()
        compiled = torch.compile(self._function, backend=backend, dynamic=False)
        return self._execute(compiled, samples)

    def _function(self, given: list[cases.Call]) -> list[Any]:
        return [self._operator(*args, **kwargs) for args, kwargs in given]

    def _execute(self, function: Callable[..., Any], samples: list[Sample], seed: int = 0) -> Ran:
        own = [sample.fresh() for sample in samples]
        cases.seed(seed)
        results = function([(sample.args, sample.kwargs) for sample in own])
        return Ran(results, [], [(sample.args, sample.kwargs) for sample in own])

    def _compare(self, found: Ran, expected: Ran) -> list[str]:
        return differences(found, expected, self._tolerance, Numbers.ALL)

    def _tolerance_for(self, sample: Sample) -> Callable[[torch.dtype], Tolerance]:
        """By how much results of a sample may differ: its least precise tensor sets the bound."""
        leaves = pytree.tree_leaves((sample.args, sample.kwargs))
        types = {leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)}
        inexact = [one for one in types if one.is_floating_point or one.is_complex]

        def tolerance(dtype: torch.dtype) -> Tolerance:
            own = self._tolerance(dtype)
            if own == EXACT:
                return own
            return Tolerance(
                *(max(parts) for parts in zip(own, *map(self._tolerance, inexact), strict=True))
            )

        return tolerance

    def _problem(self, number: int, text: str) -> None:
        self._verdict.problems.append(f"call {number}: {text}")


_TORCHS = (RuntimeError, IndexError, ValueError, TypeError)


def _is_compilers(error: BaseException) -> bool:
    """Whether the backend raised an exception while it compiled."""
    return isinstance(error, BackendCompilerFailed)


def _is_family(one: BaseException, other: BaseException) -> bool:
    """Whether one of two exceptions is a kind of the other; torch's wrapper of one counts as it."""
    return isinstance(one, type(other)) or isinstance(other, type(one))
