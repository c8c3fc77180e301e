"""Programs of other frameworks, brought into StableHLO."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Program, bindings
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.mhlo import from_tensorflow

F = "tensor<2xf32>"


def bytecode(text: str) -> bytes:
    """A module as TensorFlow hands it over, with attributes and operations of MHLO."""
    return bindings.write_bytecode(bindings.parse(text, "a test"))


def module(body: Sequence[str], attributes: str = "", results: str = F, returned: str = "") -> str:
    lines = "\n  ".join(body)
    return f"""
module @a_test {attributes} {{
 func.func @main(%a: {F}, %b: {F}) -> ({results}) {{
  {lines}
  return {returned or "%0"} : {results}
 }}
}}"""


def read(*body: str) -> Program:
    program, aliases = from_tensorflow(bytecode(module(body)))
    assert aliases == []
    return program


def test_copies_are_the_values_themselves() -> None:
    program = read(
        f"%1 = mhlo.copy %a : {F}",
        f"%2 = stablehlo.add %1, %b : {F}",
        f"%0 = mhlo.copy %2 : {F}",
    )
    assert "copy" not in program.text
    (found,) = evaluate(program, np.float32([1, 2]), np.float32([3, 4]))
    assert found.tolist() == [4.0, 6.0]


FUNCTIONS = {
    "acos": np.arccos,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atanh": np.arctanh,
    "cosh": np.cosh,
    "sinh": np.sinh,
}


@pytest.mark.parametrize("name", [*FUNCTIONS, "acosh", "erf"])
def test_functions_that_stablehlo_has_not(name: str) -> None:
    program = read(f"%0 = mhlo.{name} %a : {F}")
    # Every plugin reads what comes of them.
    artifact = Program.from_portable_artifact(program.portable_artifact("1.0.0"))
    x = np.float32([0.25, 0.5]) + (name == "acosh")
    (found,) = evaluate(artifact, x, x)
    expected = {**FUNCTIONS, "acosh": np.arccosh, "erf": _erf}[name](x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def _erf(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    from math import erf

    return np.array([erf(item) for item in x.tolist()])


def test_what_nothing_else_has_is_an_error_with_its_name() -> None:
    text = module(
        [
            f'%0 = "mhlo.domain"(%a) {{kind = #mhlo<kind sharding>, '
            f'entry_metadata = "\\\\08\\\\01", exit_metadata = "\\\\08\\\\02"}} '
            f": ({F}) -> {F}"
        ]
    )
    with pytest.raises(ProgramError, match=r"mhlo\.domain, which StableHLO has not"):
        from_tensorflow(bytecode(text))


def test_attributes_of_mhlo_go_and_others_stay() -> None:
    text = module(
        [f'%0 = stablehlo.add %a, %b {{mhlo.one = {{x = "y"}}, mine = 1 : i32}} : {F}'],
        "attributes {mhlo.cross_program_prefetches = [], mhlo.num_partitions = 1 : i32}",
    )
    program, _ = from_tensorflow(bytecode(text))
    assert "mhlo." not in program.text
    assert "mine" in program.text
    assert program.name == "a_test"


def test_old_products_become_general_ones() -> None:
    square = "tensor<2x2xf32>"
    text = f"""
module @a_test {{
 func.func @main(%a: {square}, %b: {square}) -> {square} {{
  %0 = stablehlo.dot %a, %b, precision = [HIGHEST, DEFAULT] : ({square}, {square}) -> {square}
  return %0 : {square}
 }}
}}"""
    program, _ = from_tensorflow(bytecode(text))
    assert "stablehlo.dot_general" in program.text
    assert "precision = [HIGHEST, DEFAULT]" in program.text
    a, b = (np.float32([[1, 2], [3, 4]]) + n for n in (0, 5))
    np.testing.assert_array_equal(evaluate(program, a, b)[0], a @ b)


def alias(parameter: int, result: int | None) -> str:
    """As TensorFlow writes one; an only result has no index."""
    index = "" if result is None else f": {result}"
    return (
        f'{{alias = {{kind = "may_alias", parameter_index = array<i64>, '
        f"parameter_number = {parameter} : i64}}, output_index = array<i64{index}>}}"
    )


@pytest.mark.parametrize(
    ("aliases", "expected"),
    [
        ([(1, 1)], [(1, 1)]),
        ([(0, 1), (1, 0)], [(0, 1), (1, 0)]),
        ([(12, 10)], [(12, 10)]),
        ([(1, None)], [(1, 0)]),
        ([], []),
    ],
    ids=["one", "two", "two digits", "an only result", "none"],
)
def test_results_that_are_new_values(
    aliases: list[tuple[int, int | None]], expected: list[tuple[int, int]]
) -> None:
    shown = ", ".join(alias(*item) for item in aliases)
    text = module(
        [f"%0 = stablehlo.add %a, %b : {F}"],
        f"attributes {{mhlo.input_output_alias = [{shown}]}}",
        f"{F}, {F}",
        "%0, %a",
    )
    program, found = from_tensorflow(bytecode(text))
    assert found == expected
    assert "input_output_alias" not in program.text


@pytest.mark.parametrize("given", [b"ML\xefRnothing", b"text"])
def test_other_bytes_are_an_error(given: bytes) -> None:
    with pytest.raises(ProgramError, match="TensorFlow's program"):
        from_tensorflow(given)
