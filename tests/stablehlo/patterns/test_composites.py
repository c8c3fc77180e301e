"""Composites in programs that others wrote, as a target computes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Builder, Program, Value
from pjrt_bridge.stablehlo.builder.values import Body
from pjrt_bridge.stablehlo.composites import Composite
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns import for_target
from tests.stablehlo.test_composites import X, found_in, nested


class Compiler(Kernels):
    """A target whose compiler takes squares."""

    composites = {"my.square": (0,), "my.add": (7,)}


class Own(Kernels):
    """A target with a kernel of its own for sums."""

    composites = {"my.add": range(2)}

    def composite(
        self, b: Builder, composite: Composite, operands: Sequence[Value], decomposition: Body
    ) -> Value | Sequence[Value]:
        assert (composite.name, composite.attributes) == ("my.add", {"by": 1})
        return b.negate(b.negate(*decomposition(operands)))  # type: ignore[misc]


class Wrong(Own):
    """One whose kernel gives another type."""

    def composite(
        self, b: Builder, composite: Composite, operands: Sequence[Value], decomposition: Body
    ) -> Value:
        return b.convert(operands[0], "float64")


def test_composites_are_inlined_but_for_those_that_a_target_takes() -> None:
    for kernels, names in ((Kernels(), []), (Compiler(), ["my.square"]), (Own(), [])):
        found = for_target(nested(), kernels)
        assert [composite.name for composite in found_in(found)] == names
        np.testing.assert_array_equal(evaluate(found, X)[0], (X + 1) ** 2)


def test_a_kernel_takes_the_place_of_a_composite_within_another() -> None:
    found = for_target(nested(), Own())
    assert found.text.count("stablehlo.negate") == 2


def test_a_kernel_that_gives_another_type_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"'my.add': kernels emit f64\[3\], expected f32\[3\]"):
        for_target(nested(), Wrong())


def test_a_program_without_composites_is_the_same_one() -> None:
    source = Program.from_text(
        "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> }"
    )
    assert for_target(source, Kernels()) is source


def test_a_program_over_a_mesh_has_none() -> None:
    text = nested().text.replace("module {", 'module {\nsdy.mesh @mesh = <["x"=2]>', 1)
    assert not found_in(for_target(Program.from_text(text), Compiler()))
