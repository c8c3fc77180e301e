"""What composites say of themselves, and their decompositions in their places."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.errors import ArgumentError, ProgramError
from pjrt_bridge.stablehlo import Builder, Program, Value, bindings, composites, modules
from pjrt_bridge.stablehlo.composites import OPERATION, SINCE, Composite
from pjrt_bridge.stablehlo.cost import estimate
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.program.refining import refine
from tests.stablehlo.helpers import program, tensor

X = np.array([1.0, 2.0, 3.0], np.float32)

SCALARS = (
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
)
VALUES = st.one_of(
    *SCALARS,
    *(st.lists(scalar, max_size=3) for scalar in SCALARS),
    st.lists(st.lists(st.integers(-5, 5), max_size=2), max_size=2),
)


def found_in(source: Program) -> list[Composite]:
    module = bindings.parse(source.bytecode(), "program")
    return [Composite.of(item) for item in modules.operations(module) if item.name == OPERATION]


def nested() -> Program:
    """`(x + 1) ** 2`, where the addition is a composite within one."""

    def added(b: Builder, x: Value) -> Value:
        one = Composite("my.add", {"by": 1})
        (y,) = b.composite(one, [x], lambda at: b.add(at[0], b.full(X.shape, 1, x.dtype)))
        return y

    def body(b: Builder, x: Value) -> Value:
        def squared(at: tuple[Value, ...]) -> Value:
            y = added(b, at[0])
            return b.multiply(y, y)

        return b.composite(Composite("my.square"), [x], squared)[0]

    return program(body, tensor(3))


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True), VALUES),
    st.integers(0, 2**31 - 1),
)
def test_attributes_survive_artifacts(attributes: dict[str, Any], version: int) -> None:
    composite = Composite("my.own_op.default", attributes, version)

    def body(b: Builder, x: Value) -> Value:
        return b.composite(composite, [x], lambda at: b.negate(at[0]))[0]

    source = program(body, tensor(3))
    for form in (
        source,
        Program.from_text(source.text),
        Program.from_portable_artifact(source.portable_artifact()),
        Program.from_portable_artifact(source.portable_artifact(SINCE)),
    ):
        assert found_in(form) == [composite]


def test_attributes_of_other_writers_are_read() -> None:
    text = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %0 = stablehlo.composite "their.op" %x {
        composite_attributes = {a = array<i64: 1, 2>, b = dense<[1.0, 2.0]> : tensor<2xf32>,
          c = f32, e = 0.5 : f32, f = array<i1: true, false>, "g h" = 1 : i64},
        decomposition = @same, version = -1 : i32} : (tensor<3xf32>) -> tensor<3xf32>
      return %0 : tensor<3xf32>
    }
    func.func private @same(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> }"""
    (found,) = found_in(Program.from_text(text))
    expected = {"a": (1, 2), "b": (1.0, 2.0), "c": "f32", "e": 0.5, "f": (True, False), "g h": 1}
    assert (found.attributes, found.version) == (expected, -1)


@pytest.mark.parametrize("name", ["rope", ".rope", "my.", "my rope.x", "1.a", "", None, "my.é"])
def test_names_have_a_namespace(name: Any) -> None:
    with pytest.raises(ArgumentError, match=r"name: found .*expected 'namespace.operation'"):
        Composite(name)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"a": None}, "attribute 'a': found None"),
        ({"a": [1, 2.0]}, "elements of one type"),
        ({"a": 2**63}, "64 bits"),
        ({"a": "\0"}, "zero bytes"),
        ({"a": "\ud800"}, "UTF-8"),
        ({"a": np.float32(1)}, "found a float32"),
        ({"a b": 1}, "an identifier"),
        ({"a": {}}, "a list of these"),
    ],
)
def test_attributes_of_other_kinds_are_refused(attributes: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Composite("my.op", attributes)


@pytest.mark.parametrize("version", [-1, 2**31, 1.0, True])
def test_versions_are_numbers(version: Any) -> None:
    with pytest.raises(ArgumentError, match="version"):
        Composite("my.op", version=version)


def test_nan_is_an_attribute() -> None:
    def body(b: Builder, x: Value) -> Value:
        return b.composite(Composite("my.op", {"a": math.nan}), [x], lambda at: at[0])[0]

    (found,) = found_in(program(body, tensor(3)))
    assert found.attributes["a"] != found.attributes["a"]


def inlined(source: Program, *kept: str) -> Program:
    module = bindings.parse(source.bytecode(), "program")
    composites.inline(module, lambda composite: composite.name in kept)
    return Program.from_module(module)


@pytest.mark.parametrize(
    ("kept", "names"),
    [
        ((), []),
        (("my.add",), ["my.add"]),
        (("my.square",), ["my.square"]),
        (("my.square", "my.add"), ["my.square", "my.add"]),
    ],
)
def test_only_what_is_kept_stays(kept: tuple[str, ...], names: list[str]) -> None:
    source = nested()
    found = inlined(source, *kept)
    assert [composite.name for composite in found_in(found)] == names
    assert found.text.count("func.func private") == len(names)
    np.testing.assert_array_equal(evaluate(found, X)[0], (X + 1) ** 2)
    np.testing.assert_array_equal(evaluate(source, X)[0], (X + 1) ** 2)


def test_a_composite_in_a_loop_and_several_results() -> None:
    def body(b: Builder, x: Value) -> list[Value]:
        def swapped(values: tuple[Value, ...]) -> list[Value]:
            composite = Composite("my.swap")
            count, one, other = values
            two = b.composite(composite, [one, other], lambda at: [at[1], b.add(at[0], at[0])])
            return [b.add(count, b.full((), 1, "int32")), *two]

        start = [b.full((), 0, "int32"), x, b.negate(x)]
        limit = b.full((), 3, "int32")
        return list(b.while_(start, lambda at: b.compare(at[0], limit, "LT"), swapped)[1:])

    source = program(body, tensor(3))
    assert found_in(source)
    assert not found_in(inlined(source))
    for one, other in zip(evaluate(source, X), (-2 * X, 4 * X), strict=True):
        np.testing.assert_array_equal(one, other)


RECURSIVE = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.composite "my.op" %x {decomposition = @a} : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}
func.func private @a(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.composite "my.op" %x {decomposition = @a} : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}"""


def test_a_decomposition_that_contains_itself_is_refused() -> None:
    with pytest.raises(ProgramError, match="decomposition 'a' contains itself"):
        composites.inline(bindings.parse(RECURSIVE, "program"))


def test_versions_without_composites_get_decompositions() -> None:
    old = Program.from_portable_artifact(nested().portable_artifact("0.17.0"))
    assert not found_in(old)
    np.testing.assert_array_equal(evaluate(old, X)[0], (X + 1) ** 2)


def test_a_composite_costs_what_its_decomposition_costs() -> None:
    assert estimate(nested()) == estimate(inlined(nested()))


def test_composites_of_dynamic_shapes_are_refined() -> None:
    text = """func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      %0 = stablehlo.composite "my.op" %x {decomposition = @a} : (tensor<?xf32>) -> tensor<?xf32>
      return %0 : tensor<?xf32>
    }
    func.func private @a(%x: tensor<?xf32>) -> tensor<?xf32> {
      %0 = stablehlo.add %x, %x : tensor<?xf32>
      return %0 : tensor<?xf32>
    }"""
    found = refine(Program.from_text(text), [[3]])
    np.testing.assert_array_equal(evaluate(found, X)[0], 2 * X)
