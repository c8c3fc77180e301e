"""A TensorFlow function while it is generated: each statement runs when it is added."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from tests.differential.ir import Name, Operand, Statement, shown
from tests.differential.values import numbers as torch_numbers


@dataclass(frozen=True)
class TfProgram:
    """A function, its variables, and the shapes of its arguments in each call.

    Attributes:
        variables: statements that make them.
        arguments: for each parameter its shape, with names of sizes, and its type.
        calls: values of the sizes `s` and `t`.
        body: statements.
        result: operand.
        symbolic: it is traced once, for unknown sizes.
        where: seed and index.
    """

    variables: tuple[Statement, ...]
    arguments: tuple[tuple[tuple[Operand, ...], str], ...]
    calls: tuple[tuple[int, int], ...]
    body: tuple[Statement, ...] = ()
    result: Operand = None
    symbolic: bool = False
    where: tuple[int, int] = (0, 0)

    def source(self) -> str:
        """The module."""
        lines = [statement.source() for statement in self.variables]
        names = ", ".join(f"x{at}" for at in range(len(self.arguments)))
        lines += ["", "", f"def f({names}):"]
        lines += [f"    {statement.source()}" for statement in self.body]
        lines += [f"    return {shown(self.result)}", "", "", "def arguments(s, t):"]
        made = (
            f"numbers({shown(shape)}, {shown(dtype)}, {at})"
            for at, (shape, dtype) in enumerate(self.arguments)
        )
        return "\n".join([*lines, f"    return [{', '.join(made)}]", ""])

    def features(self) -> list[str]:
        """Of its statements."""
        found = {name for statement in self.body for name in statement.features}
        found.add(f"tf.calls.{len(self.calls)}")
        if self.symbolic:
            found.add("tf.symbolic")
        return sorted(found)


def numbers(shape: Sequence[int], dtype: str, seed: int) -> Any:
    """A tensor of small numbers, in memory that TensorFlow allocated."""
    import torch

    kind = {"bfloat16": torch.float32}.get(dtype) or getattr(torch, dtype)
    return tf.cast(tf.identity(torch_numbers(shape, kind, seed).numpy()), dtype)


class Draft:
    def __init__(self, rng: random.Random, program: TfProgram) -> None:
        self.rng = rng
        self.program = program
        self.number = 0
        self.visible = [f"x{at}" for at in range(len(program.arguments))]
        self.variables = [statement.target for statement in program.variables]
        self.environments = self._started()

    def _started(self) -> list[dict[str, Any]]:
        found = []
        for row in self.program.calls:
            environment: dict[str, Any] = {"tf": tf, "numbers": numbers}
            exec(self.program.source(), environment)
            given = environment["arguments"](*row)
            environment.update({f"x{at}": value for at, value in enumerate(given)})
            for statement in self.program.body:
                exec(statement.source(), environment)
            found.append(environment)
        return found

    def add_failing(self, statement: Statement) -> bool:
        """Add a last statement that raises in some call."""
        for environment in self.environments:
            try:
                exec(statement.source(), environment)
            except Exception:
                self.program = replace(self.program, body=(*self.program.body, statement))
                if statement.target:
                    self.visible.append(statement.target)
                return True
        self.environments = self._started()
        return False

    def add(self, statement: Statement) -> bool:
        """Add a statement that runs in all calls."""
        try:
            for environment in self.environments:
                exec(statement.source(), environment)
                if statement.target and not _is_fit(environment[statement.target]):
                    raise ValueError("too large")
        except Exception:
            self.environments = self._started()
            return False
        self.program = replace(self.program, body=(*self.program.body, statement))
        if statement.target:
            self.visible.append(statement.target)
        return True

    def value(self, name: str) -> Any:
        """In the first call."""
        return self.environments[0][name]

    def tensor(self, fits: Callable[[Any], bool] = lambda _: True) -> Name:
        """A tensor that fits in all calls."""
        found = [
            name
            for name in (*self.visible, *self.variables)
            if all(tf.is_tensor(env[name]) or isinstance(env[name], tf.Variable)
                   for env in self.environments)
            and all(fits(env[name]) for env in self.environments)
        ]  # fmt: skip
        if not found:
            raise LookupError
        return Name(self.rng.choice(found[-4:] if self.rng.random() < 0.5 else found))


def _is_fit(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_fit, value))
    if not tf.is_tensor(value) or value.dtype.is_bool:
        return True
    size = int(tf.size(value))
    if size > 2000:
        return False
    wide = tf.abs(tf.cast(value, tf.complex128 if value.dtype.is_complex else tf.float64))
    return size == 0 or bool(tf.reduce_max(tf.cast(wide, tf.float64)) < 4096)
