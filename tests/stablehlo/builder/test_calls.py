"""Programs that are called by other programs."""

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import Parameter, TensorType
from tests.stablehlo.helpers import program, run

X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
TYPE = TensorType((2, 3), dtypes.of("float32"))

NESTED = Program.from_text("""
module @doubles {
  func.func public @main(%x: tensor<2x3xf32> {tf.aliasing_output = 0 : i32})
      -> (tensor<2x3xf32> {jax.result_info = "y"}, tensor<f32>) {
    %sum = call @total(%x) : (tensor<2x3xf32>) -> tensor<f32>
    %y = call @scratch(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    return %y, %sum : tensor<2x3xf32>, tensor<f32>
  }
  func.func private @total(%x: tensor<2x3xf32>) -> tensor<f32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @scratch(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.add %x, %x : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}
""")


def test_functions_are_there_once_for_all_calls():
    def body(b, x):
        once, total = b.call(NESTED, (x,))
        twice, _ = b.call(NESTED, (once,))
        return twice, total

    twice, total = run(body, X)
    np.testing.assert_array_equal(twice, 4 * X)
    assert float(total) == X.sum()
    made = program(body, TYPE)
    assert made.text.count("func.func private") == 3
    assert [item.alias for item in made.signature.parameters] == [None]


def test_symbols_of_two_programs_do_not_meet():
    other = Program.from_text(
        NESTED.text.replace("stablehlo.add %arg0, %arg0", "stablehlo.abs %arg0")
    )

    def body(b, x):
        return b.call(NESTED, (x,))[0], b.call(other, (b.negate(x),))[0]

    doubled, absolute = run(body, X)
    np.testing.assert_array_equal(doubled, 2 * X)
    np.testing.assert_array_equal(absolute, X)


def test_operations_of_chlo_are_decomposed():
    inner = Builder([TYPE])
    (x,) = inner.parameters
    text = inner.finish([inner.tanh(x)]).text.replace("stablehlo.tanh", "chlo.sinh")
    text = text.replace(
        "chlo.sinh %arg0 : tensor<2x3xf32>", "chlo.sinh %arg0 : tensor<2x3xf32> -> tensor<2x3xf32>"
    )
    called = Program.from_text(text)
    found = run(lambda b, v: b.call(called, (v,)), X)
    np.testing.assert_allclose(found, np.sinh(X), rtol=1e-6)


def test_a_call_within_a_loop():
    def body(b, x):
        def turn(values):
            at, y = values
            return b.add(at, b.full((), 1, at.dtype)), b.call(NESTED, (y,))[0]

        def more(values):
            return b.compare(values[0], b.full((), 3, values[0].dtype), "LT")

        return b.while_((b.full((), 0, dtypes.of("int32")), x), more, turn)[1]

    np.testing.assert_array_equal(run(body, X), 8 * X)


def test_functions_that_only_dropped_operations_call_are_dropped():
    builder = Builder([TYPE])
    (x,) = builder.parameters
    with builder.scratch([TYPE]) as (y,):
        builder.call(NESTED, (y,))
    assert "private" not in builder.finish([x]).text


def test_wrong_calls_name_what_was_found():
    builder = Builder([TYPE, TensorType((3,), dtypes.of("float32"))])
    x, y = builder.parameters
    with pytest.raises(ProgramError, match=r"'doubles'.*1 entries, found 2"):
        builder.call(NESTED, (x, y))
    with pytest.raises(ProgramError, match=r"operand 0: found f32\[3\], expected f32\[2,3\]"):
        builder.call(NESTED, (y,))
    meshes = 'module { sdy.mesh @m = <["a"=2]> func.func @main() { return } }'
    with pytest.raises(ProgramError, match=r"found sdy\.mesh beside its functions"):
        builder.call(Program.from_text(meshes), ())
    donated = Builder([Parameter(TYPE, donation="may")])
    called = donated.finish(donated.parameters)
    builder.finish(builder.call(called, (x,)))
