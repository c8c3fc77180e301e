"""Groups of checks that are programs: what is computed, from which arguments, how exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.numerics import (
    EXACT,
    Body,
    Oracle,
    Tolerance,
    build,
    check,
    numbers,
    whole,
)

F32, F64, I32 = (dtypes.of(name) for name in ("float32", "float64", "int32"))


class ProgramGroup(Group):
    """A group whose checks run a program and compare its results with a reference."""

    def program(
        self, name: str, sentence: str, body: Body, *arrays: Array, within: Tolerance = EXACT
    ) -> None:
        """Register a program that the reference interpreter knows.

        Args:
            name: of the check.
            sentence: what must hold.
            body: writes the program.
            *arrays: its arguments.
            within: how far results may be off.
        """

        def function(context: Context) -> None:
            check(context.client, build(body, arrays), arrays, within)

        self.add(name, sentence, function)

    def text(
        self,
        name: str,
        sentence: str,
        text: str,
        arrays: tuple[Array, ...],
        oracle: Oracle,
        within: Tolerance = EXACT,
    ) -> None:
        """Register a program in StableHLO text that NumPy is the reference for.

        Args:
            name: of the check.
            sentence: what must hold.
            text: the program.
            arrays: its arguments.
            oracle: NumPy's version.
            within: how far results may be off.
        """

        def function(context: Context) -> None:
            check(context.client, Program.from_text(text), arrays, within, oracle)

        self.add(name, sentence, function)


def main(arguments: str, result: str, body: str, more: str = "") -> str:
    """The text of a module with a function `main`, and more functions."""
    return f"module {{ {more} func.func @main({arguments}) -> {result} {{ {body} }} }}"


def floats(*shape: int, seed: int = 0) -> Array:
    """Random float32."""
    return numbers(F32, *shape, seed=seed)


def wholes(*shape: int, seed: int = 0) -> Array:
    """Small whole numbers as float32, of which sums and products are exact."""
    return whole(F32, *shape, seed=seed)


def ints(values: Any) -> Array:
    """Numbers as int32."""
    return np.array(values, np.int32)
