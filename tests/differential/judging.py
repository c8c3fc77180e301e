"""Runs a program in eager mode and in modes of the backend, and says what differs."""

from __future__ import annotations

import random
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.differential import noise
from tests.differential.comparing import Difference, described, differences
from tests.differential.exporting import observe_exported
from tests.differential.ir import Program
from tests.differential.modes import Mode, choose, device_programs, host_operators
from tests.differential.observing import Call, execute, observe
from tests.differential.threads import observe_threads


@dataclass
class Failure:
    """A difference from eager mode that is the backend's.

    Attributes:
        mode: in which.
        difference: the first of its kind, which shrinking keeps.
        others: further ones.
    """

    mode: Mode
    difference: Difference
    others: list[Difference] = field(default_factory=list)


@dataclass
class Verdict:
    """What became of a program.

    Attributes:
        failures: one for each mode that failed.
        modes: in which it ran.
        refused: modes in which it could not run, with the reason.
        torches: differences that aot_eager has, too.
        rounding: differences that are within the rounding of the program.
        raised: eager mode raised.
        programs: device programs that ran.
        seconds: for each mode, and for eager mode.
    """

    failures: list[Failure] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    torches: list[str] = field(default_factory=list)
    rounding: int = 0
    raised: bool = False
    programs: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


class Judge:
    """Judges one program.

    Args:
        program: the program.
        namespace: gives its functions; by default those that it prints.
        ignored: kinds of differences that are left out.
    """

    def __init__(
        self,
        program: Program,
        namespace: Callable[[], dict[str, Any]] | None = None,
        ignored: Sequence[str] = (),
    ) -> None:
        self._program = program
        self._ignored = ignored
        source = program.source()
        self._namespace = namespace or (lambda: execute(source))
        started = time.perf_counter()
        self.expected = self._observe(self._function("f"))
        self.operators = host_operators(sorted(self._dispatched()))
        self.verdict = Verdict(raised=any(call.error for call in self.expected))
        self.verdict.seconds["eager"] = time.perf_counter() - started
        self._oracles: dict[Any, Any] = {}

    def _dispatched(self) -> set[str]:
        """The names of the operators that the first call runs."""
        program, namespace = self._program, self._namespace()
        made = namespace["arguments"](*program.calls[0])
        given = [made[name] for name in program.parameters]
        with _Operators() as seen, warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")
            namespace["f"](*given)
        return seen.names

    def modes(self, count: int, only: Sequence[str] = ()) -> list[Mode]:
        """Modes for this program, decided by its seed and index."""
        seed, index = self._program.where
        if self._wants_checks and not only:
            only = ("checked",)
        return choose(random.Random(f"modes {seed} {index}"), count, self.operators, only)

    @property
    def _wants_checks(self) -> bool:
        """Whether it may raise only where indices and divisors are checked, which is an option."""
        return not self._program.used().isdisjoint(("errors.data_out_of_range", "errors.division"))

    def run(self, mode: Mode) -> list[Difference]:
        """What is wrong in a mode; it is noted in the verdict."""
        started = time.perf_counter()
        device_programs()
        try:
            return self._run(mode)
        finally:
            self.verdict.programs += device_programs()
            taken = time.perf_counter() - started
            self.verdict.seconds[mode.name] = self.verdict.seconds.get(mode.name, 0) + taken

    def _run(self, mode: Mode) -> list[Difference]:
        program = self._program
        if mode.exported:
            found, reason = observe_exported(program, self._namespace(), self.expected)
            if found is None:
                self.verdict.refused[mode.name] = reason
                return []
            self.verdict.modes.append(mode.name)
            return self._kept(found, mode)
        if self._wants_checks and mode.name != "checked":
            self.verdict.refused[mode.name] = "without checks"
            return []
        if mode.threads:
            if program.random or program.backward or self.verdict.raised:
                self.verdict.refused[mode.name] = "not for threads"
                return []
            self.verdict.modes.append(mode.name)
            namespace = self._namespace()
            runs = observe_threads(mode.compiled(namespace["f"]), namespace, program, mode.threads)
            for calls in runs:
                wrong = self._kept(calls, mode)
                if wrong:
                    return wrong
            return []
        self.verdict.modes.append(mode.name)
        found = self._observe(mode.compiled(self._function("f")))
        return self._kept(found, mode)

    def _kept(self, found: list[Call], mode: Mode) -> list[Difference]:
        """The differences that are the backend's own."""
        wrong = self._differences(found, self.expected)
        if not wrong:
            return []
        if not mode.exported:
            for backend in ("aot_eager", "decomposed"):
                if backend == "decomposed" and all(item.severity == "wrong" for item in wrong):
                    break
                theirs = {
                    item.key for item in self._differences(found, self._oracle(backend, mode))
                }
                own = [
                    item
                    for item in wrong
                    if item.key in theirs or (backend == "decomposed" and item.severity == "wrong")
                ]
                self.verdict.torches += [
                    f"{backend}: {item.kind}: {mode.name} {item}"
                    for item in wrong
                    if item not in own
                ]
                wrong = own
        if any(item.kind in ("value", "gradient") for item in wrong):
            rounded = noise.within_rounding(
                self._program, self._namespace, self.expected, found, wrong
            )
            self.verdict.rounding += len(rounded)
            wrong = [item for item in wrong if item not in rounded]
        return wrong

    def _oracle(self, backend: str, mode: Mode) -> list[Call]:
        key = (backend, mode.dynamic)
        if key not in self._oracles:
            chosen = _decomposed if backend == "decomposed" else backend
            try:
                self._oracles[key] = self._observe(mode.compiled(self._function("f"), chosen))
            except Exception:
                self._oracles[key] = self.expected
        found: list[Call] = self._oracles[key]
        return found

    def _differences(self, found: list[Call], expected: list[Call]) -> list[Difference]:
        return differences(found, expected, random=self._program.random, ignored=self._ignored)

    def _observe(self, function: Any) -> list[Call]:
        program = self._program
        return observe(
            function,
            self._function("arguments"),
            program.parameters,
            program.calls,
            program.backward,
            random=program.random,
        )

    def _function(self, name: str) -> Any:
        return self._namespace()[name]


def judge(
    program: Program, count: int = 2, only: Sequence[str] = (), ignored: Sequence[str] = ()
) -> Verdict:
    """Run a program in some modes."""
    judge = Judge(program, ignored=ignored)
    for mode in judge.modes(count, only):
        _note(judge, mode)
    return judge.verdict


def judge_in(program: Program, mode: Mode, ignored: Sequence[str] = ()) -> Verdict:
    """Run a program in one mode."""
    judge = Judge(program, ignored=ignored)
    _note(judge, mode)
    return judge.verdict


def _note(judge: Judge, mode: Mode) -> None:
    try:
        wrong = judge.run(mode)
    except Exception as error:
        last = traceback.format_exc().splitlines()[-8:]
        text = f"{described(error)} ({' | '.join(line.strip() for line in last)})"
        wrong = [Difference("the fuzzer itself", 0, "run", text)]
    if wrong:
        wrong.sort(key=lambda item: item.severity != "wrong")
        judge.verdict.failures.append(Failure(mode, wrong[0], wrong[1:]))


class _Operators(TorchDispatchMode):
    """Notes the names of the operators that run."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.add(func.name())
        return func(*args, **kwargs or {})


def _decomposed(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """A backend that runs in PyTorch the graphs that lowerings are given."""
    from pjrt_bridge.torch_interop import compat

    def run(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        return compat.boxed(lambda arguments: graph.forward(*arguments))

    return compat.run_aot_autograd(graph, inputs, forward=run, backward=run, inference=run)
