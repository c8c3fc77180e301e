"""Programs as tests."""

from __future__ import annotations

import textwrap

from tests.differential.ir import Program, shown
from tests.differential.modes import Mode


def as_test(program: Program, mode: Mode, name: str = "") -> str:
    """The source of a test that fails as the program does; imports come from `checking`."""
    seed, index = program.where
    name = name or f"test_seed_{seed}_program_{index}"
    words = ["f", "arguments", shown(list(program.calls)), mode.source()]
    if program.backward:
        words.append(f'"{program.backward}"')
    if program.afterwards:
        words.append(f"afterwards={shown(program.afterwards)}")
    if program.random:
        words.append("random=True")
    functions = f"{program.function()}\n\n{program.arguments()}"
    body = f"{functions}\n\ncheck({', '.join(words)})"
    return f"def {name}() -> None:\n{textwrap.indent(body, '    ')}\n"
