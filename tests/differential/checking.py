"""`check`, which printed tests call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.differential.ir import Program
from tests.differential.judging import Judge
from tests.differential.modes import Mode
from tests.differential.values import (
    Passed,
    Rounded,
    Written,
    fine,
    numbers,
    order,
    positions,
    special,
)

__all__ = [
    "Mode",
    "Passed",
    "Rounded",
    "Written",
    "check",
    "fine",
    "numbers",
    "order",
    "positions",
    "special",
]


def check(
    f: Callable[..., Any],
    arguments: Callable[..., dict[str, Any]],
    calls: Sequence[tuple[Any, ...]],
    mode: Mode,
    backward: str = "",
    *,
    afterwards: Sequence[str] = (),
    random: bool = False,
) -> None:
    """Assert that a function does in a mode what it does in eager mode.

    Args:
        f: the function.
        arguments: gives `locals()`: the arguments of `f`, and what they are made of.
        calls: arguments of `arguments`, for each call.
        mode: how `f` is compiled.
        backward: how gradients are computed.
        afterwards: what the caller does with each result after a call, names in `using`.
        random: values are drawn.
    """
    program = Program(
        columns=tuple(inspect.signature(arguments).parameters),
        calls=tuple(calls),
        parameters=tuple(inspect.signature(f).parameters),
        backward=backward,
        afterwards=tuple(afterwards),
        random=random,
    )
    judge = Judge(program, lambda: {"f": f, "arguments": arguments})
    try:
        wrong = judge.run(mode)
    finally:
        torch._dynamo.reset()
    assert not wrong, "\n".join(map(str, wrong))
