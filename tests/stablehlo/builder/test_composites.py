"""Composites that a builder writes."""

from __future__ import annotations

import numpy as np
import pytest

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.composites import Composite
from tests.stablehlo.helpers import program, run, tensor

DOUBLE = Composite("my.double")
X = np.array([1.0, 2.0, 3.0], np.float32)


def doubled(b: Builder, x: Value) -> Value:
    return b.composite(DOUBLE, [x], lambda at: b.add(at[0], at[0]))[0]


def test_equal_decompositions_are_one_function() -> None:
    def body(b: Builder, x: Value) -> Value:
        tripled = b.composite(DOUBLE, [x], lambda at: b.add(at[0], b.add(at[0], at[0])))[0]
        return b.add(doubled(b, doubled(b, x)), tripled)

    text = program(body, tensor(3)).text
    assert text.count('stablehlo.composite "my.double"') == 3
    assert text.count("func.func private") == 2
    np.testing.assert_array_equal(run(body, X), 7 * X)


def test_a_decomposition_sees_its_operands_alone() -> None:
    b = Builder([tensor(3)])
    (x,) = b.parameters
    with pytest.raises(ProgramError, match="out of scope"):
        b.composite(DOUBLE, [x], lambda at: b.add(at[0], x))
    with pytest.raises(ProgramError, match="out of scope"):
        b.composite(DOUBLE, [x], lambda at: x)
    other = Builder([tensor(3)])
    with pytest.raises(ProgramError, match="out of scope"):
        b.composite(DOUBLE, other.parameters, lambda at: at[0])
    assert b.finish([doubled(b, x)]).text.count("func.func private") == 1


def test_what_was_tried_leaves_nothing() -> None:
    b = Builder([tensor(3)])
    with b.scratch([tensor(2)]) as (x,):
        doubled(b, x)
    assert "my.double" not in b.finish(b.parameters).text
