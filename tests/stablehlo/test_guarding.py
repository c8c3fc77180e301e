"""Programs for plugins have forms that no compiler misreads or dies of."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from pjrt_bridge import Client
from pjrt_bridge.stablehlo import Program, Value
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from tests.stablehlo.helpers import program, tensor

NAN = "0x7FC00000"


def of_constants(op: str, element: str, *constants: str) -> Program:
    """A program of one operation on constants of two elements, and of nothing else."""
    names = [f"%{number}" for number in range(len(constants))]
    lines = [
        f"{name} = stablehlo.constant dense<{constant}> : tensor<2x{element}>"
        for name, constant in zip(names, constants, strict=True)
    ]
    return Program.from_text(f"""
        func.func @main() -> tensor<2x{element}> {{
          {" ".join(lines)}
          %r = stablehlo.{op} {", ".join(names)} : tensor<2x{element}>
          return %r : tensor<2x{element}>
        }}""")


def guarded(made: Program) -> str:
    return Program.from_portable_artifact(made.portable_artifact()).text


@pytest.mark.parametrize(
    ("op", "element", "constants", "expected"),
    [
        ("divide", "i32", ("[7, -7]", "[0, 2]"), [-1, -3]),
        ("divide", "i8", ("[-128, 5]", "[-1, 0]"), [-128, -1]),
        ("divide", "ui8", ("[7, 9]", "[0, 2]"), [255, 4]),
        ("remainder", "i64", ("[7, -7]", "[0, 2]"), [7, -1]),
        ("remainder", "ui32", ("[7, 9]", "[0, 2]"), [7, 1]),
        ("power", "i32", ("[-1, 2]", "[-1, 3]"), [-1, 8]),
        ("count_leading_zeros", "i16", ("[-1, 1]",), [0, 15]),
        ("add", "i1", ("[true, false]", "[true, false]"), [True, False]),
        ("maximum", "f32", (f"[{NAN}, 1.0]", "[0.0, 2.0]"), [np.nan, 2]),
        ("minimum", "f32", (f"[{NAN}, 1.0]", "[0.0, 2.0]"), [np.nan, 1]),
        ("clamp", "f32", ("[0.0, 0.0]", f"[{NAN}, 3.0]", "[1.0, 1.0]"), [np.nan, 1]),
    ],
)
def test_compilers_fold_constants_rightly(
    client: Client, op: str, element: str, constants: tuple[str, ...], expected: list[float]
) -> None:
    made = of_constants(op, element, *constants)
    (found,) = client.compile(made)()
    np.testing.assert_array_equal(found.to_numpy(), expected)
    (interpreted,) = evaluate(made)
    np.testing.assert_array_equal(interpreted, expected)


def test_constants_are_followed_through_operations(client: Client) -> None:
    """What a compiler finds out by itself is not in a constant."""
    (found,) = client.compile("""
        func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
          %zero = stablehlo.constant dense<0.0> : tensor<f32>
          %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<2xf32>
          %nan = stablehlo.divide %zeros, %zeros : tensor<2xf32>
          %true = stablehlo.constant dense<true> : tensor<2xi1>
          %chosen = stablehlo.select %true, %nan, %x : tensor<2xi1>, tensor<2xf32>
          %r = stablehlo.maximum %chosen, %zeros : tensor<2xf32>
          return %r : tensor<2xf32>
        }""")(np.ones(2, np.float32))
    assert np.isnan(found.to_numpy()).all()


def test_the_interpreter_survives_arguments_that_are_zero() -> None:
    script = """
import numpy as np
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
for op, expected in (("divide", [-1, 2]), ("remainder", [7, 1])):
    made = Program.from_text(
        "func.func @main(%x: tensor<2xi32>, %y: tensor<2xi32>) -> tensor<2xi32> {"
        f" %r = stablehlo.{op} %x, %y : tensor<2xi32> return %r : tensor<2xi32> }}"
    )
    (found,) = evaluate(made, np.array([7, 7], np.int32), np.array([0, 3], np.int32))
    assert found.tolist() == expected, found
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_guarded_stays_as_it_is() -> None:
    made = program(
        lambda b, x, y: (b.divide(x, y), b.remainder(y, x)),
        tensor(2, dtype="int32"),
        tensor(2, dtype="int32"),
    )
    assert guarded(made).count("stablehlo.divide") == 1
    assert guarded(made) == guarded(Program.parse(made.portable_artifact()))
    assert guarded(made).count("stablehlo.select") == made.text.count("stablehlo.select") == 4


@pytest.mark.parametrize(
    "body",
    [
        lambda b, x: b.divide(x, b.full((2,), 3, "int32")),
        lambda b, x: b.maximum(x, b.full((2,), 0, "int32")),
        lambda b, x: b.convert(
            b.maximum(b.convert(x, "float32"), b.full((2,), 0, "float32")), "int32"
        ),
        lambda b, x: b.compare(x, b.full((2,), 0, "int32"), "LT"),
    ],
)
def test_what_is_safe_stays_as_it_is(body: Callable[..., Value]) -> None:
    made = program(body, tensor(2, dtype="int32"))
    assert guarded(made) == made.text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda b, x: b.abs(b.multiply(x, x)), [112, 0, 1]),
        (lambda b, x: b.sign(b.multiply(x, x)), [-1, 0, 1]),
        (lambda b, x: b.abs(b.multiply(b.negate(x), b.negate(x))), [112, 0, 1]),
        (lambda b, x: b.compare(b.abs(x), b.full((3,), 0, "int8"), "GE"), [True, False, True]),
    ],
)
def test_integers_that_wrap_may_be_negative(
    client: Client, body: Callable[..., Value], expected: list[int]
) -> None:
    made = program(body, tensor(3, dtype="int8"))
    given = np.array([12, -128, 1], np.int8)
    (found,) = client.compile(made)(given)
    assert found.to_numpy().tolist() == expected
    assert np.asarray(evaluate(made, given)[0]).tolist() == expected


def test_a_divisor_that_is_one_for_another_reason_is_guarded(client: Client) -> None:
    (found,) = client.compile("""
        func.func @main() -> tensor<2xi32> {
          %x = stablehlo.constant dense<[0, 7]> : tensor<2xi32>
          %y = stablehlo.constant dense<[5, 0]> : tensor<2xi32>
          %zero = stablehlo.constant dense<0> : tensor<2xi32>
          %one = stablehlo.constant dense<1> : tensor<2xi32>
          %test = stablehlo.compare EQ, %x, %zero : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
          %divisor = stablehlo.select %test, %one, %y : tensor<2xi1>, tensor<2xi32>
          %r = stablehlo.divide %x, %divisor : tensor<2xi32>
          return %r : tensor<2xi32>
        }""")()
    assert found.to_numpy().tolist() == [0, -1]
