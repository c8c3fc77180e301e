"""Runs a program in eager mode and in modes of the backend, and says what differs."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pjrt_bridge.errors import DeviceError
from tests.differential import excusing, noise
from tests.differential.comparing import (
    SEVERITIES,
    Difference,
    described,
    differences,
    is_out_of_bounds,
)
from tests.differential.dispatching import dispatched
from tests.differential.exporting import Exporting, Refused
from tests.differential.ir import Program
from tests.differential.laying_out import laid_out
from tests.differential.messages import Answer, Found, packed
from tests.differential.modes import Mode, choose, device_programs, host_operators
from tests.differential.observing import Call, Seen, execute, observe
from tests.differential.oracles import OF_LAYOUT, oracles_of
from tests.differential.residing import on_device
from tests.differential.threads import observe_threads
from tests.differential.using import WEIGHTED


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
        self._source = source
        self._namespace = namespace or (lambda: execute(source))
        started = time.perf_counter()
        self.expected = self._observe(self._function("f"))
        self._did = dispatched(program, self._namespace)
        self.operators = host_operators(sorted(self._did.names))
        self.answer = Answer(
            features=sorted(program.used()),
            statements=len(program.body),
            raised=any(call.error for call in self.expected),
            seconds={"eager": time.perf_counter() - started},
        )
        self._oracles: dict[tuple[str, bool | None], list[Call]] = {}

    def modes(self, count: int, only: Sequence[str] = ()) -> list[Mode]:
        """Modes for this program, decided by its seed and index."""
        seed, index = self._program.where
        if self._wants_checks and not only:
            only = ("checked",)
        return choose(random.Random(f"modes {seed} {index}"), count, self.operators, only)

    @property
    def _wants_checks(self) -> bool:
        """Whether it may raise only where indices and divisors are checked, which is an option."""
        if not self._program.used().isdisjoint(("errors.data_out_of_range", "errors.division")):
            return True
        # Indices that a program computed, such as a view of floats as integers.
        # `scatter` and its like raise a RuntimeError for them.
        return any(
            is_out_of_bounds(call.error) and "out of" in str(call.error) for call in self.expected
        )

    def run(self, mode: Mode) -> list[Difference]:
        """What is wrong in a mode; it is noted in the answer."""
        started = time.perf_counter()
        device_programs()
        try:
            return self._run(mode)
        finally:
            self.answer.programs += device_programs()
            taken = time.perf_counter() - started
            self.answer.seconds[mode.name] = self.answer.seconds.get(mode.name, 0) + taken

    def _run(self, mode: Mode) -> list[Difference]:
        program = self._program
        if mode.exported:
            if self._did.resizes:
                self.answer.refused[mode.name] = "torch.export's `out=` of another size"
                return []
            try:
                found = self._exporting().observe(bool(mode.dynamic))
            except Refused as reason:
                self.answer.refused[mode.name] = str(reason)
                return []
            self.answer.modes.append(mode.name)
            return self._kept(found, mode)
        if self._wants_checks and mode.name != "checked":
            self.answer.refused[mode.name] = "without checks"
            return []
        if mode.threads:
            forward = any(name in self._source for name in _OF_FORWARD_MODE)
            if program.random or program.backward or self.answer.raised or forward:
                self.answer.refused[mode.name] = "not for threads"
                return []
            self.answer.modes.append(mode.name)
            namespace = self._namespace()
            runs = observe_threads(mode.compiled(namespace["f"]), namespace, program, mode.threads)
            for calls in runs:
                wrong = self._kept(calls, mode)
                if wrong:
                    return wrong
            return []
        if mode.results_rule is not None and program.afterwards:
            self.answer.refused[mode.name] = "uses of results depend on their layout"
            return []
        if mode.eager:
            grows = {"grown", "out_of_other_size"} & {*program.afterwards}
            if grows or "cond" in self._source or "while_loop" in self._source:
                self.answer.refused[mode.name] = "larger storages, and Dynamo in a device's context"
                return []
            with on_device(mode.eager):
                found = self._observe(self._function("f"))
            if any(_is_too_small(call.error) for call in found):
                self.answer.refused[mode.name] = "larger storages of several tensors"
                return []
            if any(map(_is_overlapping, found)):
                self.answer.refused[mode.name] = "elements that share memory, which are written"
                return []
            if any(_is_lost(call.error) for call in found):
                self.answer.refused[mode.name] = "torch loses what a hook of backward raises"
                return []
            self.answer.modes.append(mode.name)
            return [item for item in self._kept(found, mode) if not self._is_filled(item)]
        found = self._observe(mode.compiled(self._function("f")))
        if mode.results_rule is not None and any(_is_in_parts(call.error) for call in found):
            self.answer.refused[mode.name] = "in several graphs"
            return []
        reason = "" if mode.dynamic is False else self._lost_to_symbols(found)
        if reason:
            self.answer.refused[mode.name] = reason
            return []
        self.answer.modes.append(mode.name)
        return self._kept(found, mode)

    def _lost_to_symbols(self, found: list[Call]) -> str:
        """What torch does otherwise in these calls because sizes are symbols; empty: nothing."""
        if any(map(_takes_more_uses, self.expected, found)):
            return "one of several views, of sizes that change"
        errors = [str(call.error) for call in found]
        for text, reason in _REFUSED_OF_SYMBOLS.items():
            if any(text in error for error in errors):
                return reason
        return ""

    def _is_filled(self, item: Difference) -> bool:
        """Whether integers need a gradient in eager mode alone.

        Torch fills a part with a number that is on the CPU, and copies it from another device.
        """
        call = self.expected[item.call]
        seen = {**call.results, **call.arguments}.get(item.place)
        return (
            item.kind == "requires_grad"
            and isinstance(seen, Seen)
            and not (seen.value.is_floating_point() or seen.value.is_complex())
        )

    def _kept(self, found: list[Call], mode: Mode) -> list[Difference]:
        """The differences that are the backend's own."""
        rule = mode.results_rule
        wrong = self._differences(found, laid_out(self.expected, rule))
        if mode.dynamic is not False:
            placed = [item for item in wrong if item.kind == "view" and _is_by_place(found, item)]
            self.answer.torches += [f"by place: view: {mode.name} {item}" for item in placed]
            wrong = [item for item in wrong if item not in placed]
        # Runs in eager mode cost less than the oracles, which compile.
        if any(item.kind in ("value", "gradient") for item in wrong):
            rounded = noise.within_rounding(
                self._program, self._namespace, self.expected, found, wrong
            )
            self.answer.rounding += len(rounded)
            wrong = [item for item in wrong if item not in rounded]
        if any(item.kind == "distribution" for item in wrong):
            scattered = noise.within_scatter(self._program, self._namespace, found, wrong)
            self.answer.rounding += len(scattered)
            wrong = [item for item in wrong if item not in scattered]
        shared: list[Difference] = []
        for oracle in oracles_of(mode):
            if not excusing.asks(oracle, wrong):
                continue
            calls = laid_out(self._oracle(oracle, mode), rule)
            said = excusing.excused(oracle, wrong, self._differences(found, calls), calls, found)
            self.answer.torches += [
                f"{oracle}: {item.kind}: {mode.name} {item}" for item in said.torches
            ]
            wrong = said.own
            # PyTorch's kernels and its compiler are free to read before or after they write.
            if not self._did.in_order:
                shared += said.shared
                continue
            self.answer.torches += [
                f"in order: {item.kind}: {mode.name} {item}" for item in said.shared
            ]
        return [*wrong, *shared]

    def _oracle(self, name: str, mode: Mode) -> list[Call]:
        """What torch gives in this way without the bridge."""
        key = (name, mode.dynamic)
        if key not in self._oracles:
            chosen = OF_LAYOUT.get(name, name)
            if name == "promised":
                # What is promised for known sizes.
                mode = replace(mode, dynamic=False)
            try:
                if mode.exported:
                    found = self._exporting().observe(bool(mode.dynamic), name)
                else:
                    found = self._observe(mode.compiled(self._function("f"), chosen))
            except Exception:
                found = self.expected
            self._oracles[key] = found
        return self._oracles[key]

    def _exporting(self) -> Exporting:
        return Exporting(self._program, self._namespace(), self.expected)

    def _differences(self, found: list[Call], expected: list[Call]) -> list[Difference]:
        return differences(found, expected, random=self._program.random, ignored=self._ignored)

    def _observe(self, function: Any) -> list[Call]:
        return observe(function, self._function("arguments"), self._program)

    def _function(self, name: str) -> Any:
        return self._namespace()[name]


def judge(
    program: Program,
    count: int = 2,
    only: Sequence[str] = (),
    ignored: Sequence[str] = (),
    mode: Mode | None = None,
) -> Answer:
    """Run a program in a mode, or in some that its seed and index decide."""
    judge = Judge(program, ignored=ignored)
    for chosen in [mode] if mode is not None else judge.modes(count, only):
        _note(judge, chosen)
    return judge.answer


def _note(judge: Judge, mode: Mode) -> None:
    try:
        wrong = judge.run(mode)
    except Exception as error:
        last = traceback.format_exc().splitlines()[-8:]
        text = f"{described(error)} ({' | '.join(line.strip() for line in last)})"
        wrong = [Difference("the fuzzer itself", 0, "run", text)]
    if wrong:
        first, *others = sorted(wrong, key=lambda item: SEVERITIES.index(item.severity))
        judge.answer.failures.append(
            Found(
                packed(mode),
                mode.name,
                first.severity,
                first.kind,
                str(first),
                [str(other) for other in others[:8]],
            )
        )


def _is_in_parts(error: BaseException | None) -> bool:
    """Whether Dynamo could not make one graph of a function."""
    return isinstance(error, (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError))


def _is_by_place(found: Sequence[Call], item: Difference) -> bool:
    """Whether a result is a view only after a call that was compiled.

    Torch makes a view whose sizes are symbols by its place, and forgets that it is detached. It
    makes a graph for each size where a number changes of which the bridge keeps one graph.
    """
    one, _, other = item.place.partition(" and ")
    return (one, other) in found[item.call].related


def _takes_more_uses(expected: Call, found: Call) -> bool:
    """Whether a result takes a weight that eager mode refuses for a view that is one of several.

    Torch forgets that of views whose sizes are symbols, and makes a graph for each size where a
    number changes of which the bridge keeps one graph.
    """
    return any(
        error == "RuntimeError" and place.endswith(WEIGHTED) and found.used.get(place) == ""
        for place, error in expected.used.items()
    )


_OF_FORWARD_MODE = ("func.jvp", "func.jacfwd", "func.hessian", "func.linearize")
"""Torch counts their levels in the process, and refuses a second one from another thread."""

_REFUSED_OF_SYMBOLS = {
    "cond's output stride is not a simple": "torch's `cond` on sizes that may be 0",
    "a mutation on a view chain": "torch's windows of a changing length that are written into",
    "tried to directly modify sizes for": "torch's `out=` of another size",
    "sources must not be empty for symbol": "Dynamo's guards of a view beside its base",
}
"""What torch refuses where sizes are symbols, by what it says.

It makes a graph for each size where a number changes of which the bridge keeps one graph.
"""


def _is_too_small(error: BaseException | None) -> bool:
    """Whether device `pjrt` refused to resize a tensor (docs/device.md): a storage would grow."""
    return isinstance(error, DeviceError) and "needs a larger storage" in str(error)


def _is_overlapping(call: Call) -> bool:
    """Whether device `pjrt` refused to write into elements that share memory.

    Kernels of the CPU that do not refuse that leave there what comes last in their order.
    """
    return call.error_in == "call" and "refers to a single memory location" in str(call.error)


def _is_lost(error: BaseException | None) -> bool:
    """Whether torch lost the exception of a hook on device `pjrt` (docs/device.md)."""
    return isinstance(error, SystemError) and "without setting an exception" in str(error)
