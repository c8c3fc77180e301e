"""Elementwise expressions that are computed together: what both read is read once.

An expression takes in the ones before it whose results it reads, and those that read the same
arrays, if nothing needs their results before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.rewriting import MOVING, Operation, is_behind
from pjrt_bridge.stablehlo.kernel_attributes import (
    Expression,
    ExpressionRead,
    ExpressionResult,
    ExpressionStep,
)
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.known_numbers import users
from pjrt_bridge.stablehlo.patterns.following import Found, whole

_NEAREST = 8
"""So many of the calls that read an array are looked at, the latest ones."""


@dataclass(eq=False)
class _Made:
    """A call of an expression that was written.

    Attributes:
        written: the expression.
        call: the operation.
    """

    written: Found
    call: Any

    @property
    def found(self) -> Found:
        """The expression as it is now: what made an operand may have been rewritten."""
        return self.written._replace(leaves=list(self.call.operands))


class MergedExpressions:
    """The calls of expressions in a program, with those that are computed together as one.

    Args:
        kernels: of the target.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._made: dict[Any, _Made] = {}
        self._readers: dict[Any, list[_Made]] = {}

    def computed(self, b: Builder, operation: Operation, found: Found) -> Value | None:
        """An expression where an operation stands, by `Kernels.expression`; None if it has none."""
        uses = _Uses(operation.handle, found)
        merged, taken = _Assembled(found, []), list[_Made]()
        for made in self._candidates(found):
            together = merged.behind(made, uses) if uses.allow(made.call) else None
            if together is not None:
                merged, taken = together, [*taken, made]
        values = self._written(b, operation, merged.found) if taken else None
        if values is None:
            merged, taken = _Assembled(found, []), []
            values = self._written(b, operation, found)
        if values is None:
            return None
        *others, result = values
        for handle, value in zip(merged.handles, others, strict=True):
            operation.supersede(handle, value)
        for made in taken:
            self._forget(made)
        call = operation.maker(result)
        is_whole = len(call.operands) == len(merged.found.leaves)
        if is_whole and [operation.maker(value) for value in values] == [call] * len(call.results):
            self._remember(_Made(merged.found, call))
        return result

    def _written(self, b: Builder, operation: Operation, found: Found) -> Sequence[Value] | None:
        expression = found.overwriting()
        return self._kernels.expression(b, expression, found.operands(b, operation))

    def _candidates(self, found: Found) -> Iterator[_Made]:
        """Earlier calls that an expression reads the results of, or the arrays."""
        size, seen = found.expression.size, set[_Made]()
        for leaf, read in zip(found.leaves, found.expression.reads, strict=True):
            if isinstance(leaf, np.ndarray) or read != whole(size):
                continue
            near = reversed(self._readers.get(leaf, [])[-_NEAREST:])
            for made in [*([self._made[leaf]] if leaf in self._made else []), *near]:
                if made not in seen and made.written.expression.size == size:
                    seen.add(made)
                    yield made

    def _remember(self, made: _Made) -> None:
        for result in made.call.results:
            self._made[result] = made
        for leaf in made.written.leaves:
            if not isinstance(leaf, np.ndarray):
                self._readers.setdefault(leaf, []).append(made)

    def _forget(self, made: _Made) -> None:
        for result in made.call.results:
            self._made.pop(result, None)
        for leaf in made.written.leaves:
            if not isinstance(leaf, np.ndarray):
                self._readers[leaf].remove(made)


class _Uses:
    """The uses of earlier values by an expression and by others.

    Args:
        root: the operation whose place the expression takes.
        found: the expression.
    """

    def __init__(self, root: Any, found: Found) -> None:
        self._root, self._found = root, found
        self._leaves = {leaf for leaf in found.leaves if not isinstance(leaf, np.ndarray)}
        self._needless: dict[Any, bool] = {root: True}

    def allow(self, call: Any) -> bool:
        """Whether a call comes before the root, and may come as late as it."""
        is_near = call.block == self._root.block and is_behind(self._root, call)
        return is_near and all(self._are_late(result) for result in call.results)

    def need(self, value: Any) -> bool:
        """Whether a value is used by others than the expression."""
        return not all(self._is_needless(user) for user in users(value))

    def _are_late(self, value: Any) -> bool:
        """Whether a value is used by the expression alone, or behind its root."""
        return all(
            is_behind(user, self._root)
            or self._is_needless(user)
            or (user.name in MOVING and self._are_late(user.results[0]))
            for user in users(value)
        )

    def _is_needless(self, operation: Any) -> bool:
        """Whether an operation is not needed once the expression takes the place of its root."""
        if operation not in self._found.passed and operation != self._root:
            return False
        if operation not in self._needless:
            self._needless[operation] = all(
                result not in self._leaves
                and all(self._is_needless(user) for user in users(result))
                for result in operation.results
            )
        return self._needless[operation]


class _Together:
    """Two expressions as one, in which each step and each read is there once."""

    def __init__(self) -> None:
        self.steps: list[ExpressionStep] = []
        self.reads: list[ExpressionRead] = []
        self.leaves: list[Any] = []
        self._known: dict[Any, int] = {}

    def read(self, leaf: Any, read: ExpressionRead) -> int:
        """The step that reads what a leaf has."""
        key = (id(leaf) if isinstance(leaf, np.ndarray) else leaf, read)
        if key not in self._known:
            self.leaves.append(leaf)
            self.reads.append(read)
            step = ExpressionStep("read", number=len(self.leaves) - 1)
            self.steps.append(step)
            self._known[key] = len(self.steps) - 1
        return self._known[key]

    def step(self, step: ExpressionStep) -> int:
        """A step of steps that are there."""
        if step not in self._known:
            self.steps.append(step)
            self._known[step] = len(self.steps) - 1
        return self._known[step]

    def add(self, found: Found, known: Mapping[Any, int]) -> list[int]:
        """Add the steps of an expression; where they are.

        Args:
            found: the expression.
            known: the steps whose results some of its leaves are.
        """
        at: list[int] = []
        for step in found.expression.steps:
            if step.operation == "read":
                index = int(step.number)
                leaf, read = found.leaves[index], found.expression.reads[index]
                is_known = not isinstance(leaf, np.ndarray) and leaf in known
                if is_known and read == whole(found.expression.size):
                    at.append(known[leaf])
                else:
                    at.append(self.read(leaf, read))
            else:
                operands = tuple(at[item] for item in step.operands)
                at.append(self.step(replace(step, operands=operands)))
        return at


@dataclass(frozen=True)
class _Assembled:
    """An expression with those before it that it has taken in.

    Attributes:
        found: the expression; the result of its root is the last one.
        handles: the values that the results before that one take the place of.
    """

    found: Found
    handles: Sequence[Any]

    def behind(self, made: _Made, uses: _Uses) -> _Assembled | None:
        """The same with one more; None where there would be too much of anything."""
        both, known, earlier = _Together(), dict[Any, int](), made.found
        handles, results, donors = list[Any](), list[ExpressionResult](), dict[int, Any]()
        at = both.add(earlier, {})
        for index, result in enumerate(earlier.expression.results):
            handle, step = made.call.results[index], at[result.step]
            is_rounded = str(result.dtype) == "bfloat16"
            known[handle] = both.step(ExpressionStep("round", (step,))) if is_rounded else step
            if uses.need(handle):
                if index in earlier.donors:
                    donors[len(results)] = earlier.donors[index]
                results.append(replace(result, step=step))
                handles.append(handle)
        at, count = both.add(self.found, known), len(results)
        results += [replace(item, step=at[item.step]) for item in self.found.expression.results]
        donors |= {index + count: donor for index, donor in self.found.donors.items()}
        expression = Expression(tuple(both.steps), tuple(both.reads), tuple(results))
        found = Found(expression, both.leaves, self.found.passed, donors)
        is_possible = (
            len(both.steps) <= Expression.MOST_STEPS
            and len(both.reads) <= Expression.MOST_READS
            and len(results) <= Expression.MOST_RESULTS
            and found.may_overwrite()
        )
        return _Assembled(found, [*handles, *self.handles]) if is_possible else None
