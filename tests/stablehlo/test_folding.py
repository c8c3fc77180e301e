"""Values that depend on no argument become constants where compilers may round them in two ways."""

from __future__ import annotations

import numpy as np

from pjrt_bridge.stablehlo import Program, bindings
from pjrt_bridge.stablehlo.folding import fold
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate

POSITIONS = """
    %i = stablehlo.iota dim = 0 : tensor<20xf32>
    %half = stablehlo.constant dense<0.5> : tensor<20xf32>
    %scale = stablehlo.constant dense<0.6> : tensor<20xf32>
    %s = stablehlo.add %i, %half : tensor<20xf32>
    %p = stablehlo.multiply %s, %scale : tensor<20xf32>
    %q = stablehlo.subtract %p, %half : tensor<20xf32>
    %first = stablehlo.floor %q : tensor<20xf32>
"""
RESIZED = f"""
func.func @main(%a: tensor<20xf32>) -> (tensor<20xf32>, tensor<20xf32>) {{
  {POSITIONS}
  %w = stablehlo.subtract %q, %first : tensor<20xf32>
  %0 = stablehlo.multiply %a, %w : tensor<20xf32>
  return %0, %first : tensor<20xf32>, tensor<20xf32>
}}
"""


def folded(text: str) -> tuple[Program, Program]:
    """A program before and after."""
    module = bindings.parse(text, "a test")
    before = Program.from_module(module)
    fold(module)
    return before, Program.from_module(module)


def is_used(program: Program, name: str) -> int:
    return program.text.count(f"stablehlo.{name} ")


def test_positions_are_constants_with_the_same_values() -> None:
    before, after = folded(RESIZED)
    a = np.random.default_rng(0).normal(size=20).astype(np.float32)
    for expected, found in zip(evaluate(before, a), evaluate(after, a), strict=True):
        assert expected.tobytes() == found.tobytes()
    i = np.arange(20, dtype=np.float32)
    positions = (i + np.float32(0.5)) * np.float32(0.6) - np.float32(0.5)
    assert np.array_equal(evaluate(after, a)[1], np.floor(positions))
    assert "stablehlo.constant dense<[" in after.text


def test_positions_in_a_loop() -> None:
    _, after = folded(f"""
func.func @main(%a: tensor<20xf32>) -> tensor<20xf32> {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%n = %zero, %x = %a) : tensor<i32>, tensor<20xf32>
  cond {{
    %most = stablehlo.constant dense<3> : tensor<i32>
    %more = stablehlo.compare LT, %n, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  }} do {{
    {POSITIONS}
    %y = stablehlo.add %x, %first : tensor<20xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %m, %y : tensor<i32>, tensor<20xf32>
  }}
  return %0#1 : tensor<20xf32>
}}
""")
    assert "stablehlo.constant dense<[" in after.text
    (found,) = evaluate(after, np.zeros(20, np.float32))
    assert found[19] == 3 * 11


def test_what_stays() -> None:
    """Of arguments; without both a product and a sum; of integers; of many elements."""
    for text in (
        """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
             %0 = stablehlo.multiply %a, %a : tensor<4xf32>
             %1 = stablehlo.add %0, %a : tensor<4xf32>
             return %1 : tensor<4xf32> }""",
        """func.func @main() -> tensor<4xf32> {
             %0 = stablehlo.iota dim = 0 : tensor<4xf32>
             %1 = stablehlo.add %0, %0 : tensor<4xf32>
             return %1 : tensor<4xf32> }""",
        """func.func @main() -> tensor<4xi32> {
             %0 = stablehlo.iota dim = 0 : tensor<4xi32>
             %1 = stablehlo.multiply %0, %0 : tensor<4xi32>
             %2 = stablehlo.add %0, %1 : tensor<4xi32>
             return %2 : tensor<4xi32> }""",
        """func.func @main() -> tensor<65536xf32> {
             %0 = stablehlo.iota dim = 0 : tensor<65536xf32>
             %1 = stablehlo.multiply %0, %0 : tensor<65536xf32>
             %2 = stablehlo.add %0, %1 : tensor<65536xf32>
             return %2 : tensor<65536xf32> }""",
    ):
        before, after = folded(text)
        assert before.text == after.text


def test_what_the_interpreter_cannot_compute_stays() -> None:
    before, after = folded("""
func.func @main() -> tensor<2xf32> {
  %0 = stablehlo.iota dim = 0 : tensor<2xf32>
  %1 = stablehlo.multiply %0, %0 : tensor<2xf32>
  %2 = stablehlo.add %0, %1 : tensor<2xf32>
  %3 = stablehlo.custom_call @unknown(%2) : (tensor<2xf32>) -> tensor<2xf32>
  return %3 : tensor<2xf32>
}
""")
    assert before.text != after.text
    assert is_used(after, "custom_call") == 1
