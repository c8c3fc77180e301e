"""Dynamic programs become static ones for given sizes, or say why not."""

from __future__ import annotations

import pytest

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.program.refining import refine

DOUBLED = Program.from_text("""
module @doubled {
  func.func @main(%which: tensor<i32>, %a: tensor<?x3xf32>) -> tensor<?xf32> {
    %c3 = stablehlo.constant dense<3> : tensor<i32>
    %n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<?x3xf32>) -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %enough = stablehlo.compare GE, %n, %two, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.custom_call @shape_assertion(%enough, %n) {
      api_version = 2 : i32, error_message = "needs two rows, found {0}", has_side_effect = true
    } : (tensor<i1>, tensor<i32>) -> ()
    %b = "stablehlo.case"(%which) ({
      %x = stablehlo.add %a, %a : tensor<?x3xf32>
      stablehlo.return %x : tensor<?x3xf32>
    }, {
      %y = stablehlo.custom_call @nobody_has_this(%a) : (tensor<?x3xf32>) -> tensor<?x3xf32>
      stablehlo.return %y : tensor<?x3xf32>
    }) : (tensor<i32>) -> tensor<?x3xf32>
    %size = stablehlo.multiply %n, %c3 : tensor<i32>
    %shape = stablehlo.reshape %size : (tensor<i32>) -> tensor<1xi32>
    %r = stablehlo.dynamic_reshape %b, %shape
      : (tensor<?x3xf32>, tensor<1xi32>) -> tensor<?xf32>
    return %r : tensor<?xf32>
  }
}
""")


def test_sizes_go_through_the_program() -> None:
    text = DOUBLED.text
    refined = refine(DOUBLED, [(4, 3)], {0: 0})
    (parameter,), (result,) = refined.signature.parameters, refined.signature.results
    assert (parameter.type.shape, result.type.shape) == ((4, 3), (12,))
    # Neither the check nor what other choices would have computed is left.
    assert "custom_call" not in refined.text
    assert "dynamic" not in refined.text
    assert DOUBLED.text == text


def test_attributes_of_the_parameters_stay() -> None:
    program = Program.from_text("""
    func.func @main(%i: tensor<i32>, %a: tensor<?xf32> {jax.buffer_donor = true}, %k: tensor<f32>)
        -> tensor<?xf32> { return %a : tensor<?xf32> }
    """)
    refined = refine(program, [(5,), ()], {0: 7})
    assert [p.donation for p in refined.signature.parameters] == ["may", "kept"]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(1, 3)], "needs two rows, found 1"),
        ([(4, 4)], r"parameter 0: found shape \[4, 4\], expected tensor<\?x3xf32>"),
        ([(4,)], r"parameter 0: found shape \[4\]"),
        ([], "found shapes for 0 parameters, expected 1"),
    ],
)
def test_shapes_that_do_not_fit(shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        refine(DOUBLED, shapes, {0: 0})


@pytest.mark.parametrize(
    ("index", "message"), [(1, "parameter 1: found type"), (2, "no parameter 2")]
)
def test_constants_that_cannot_be(index: int, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        refine(DOUBLED, [(4, 3)], {index: 0})


def test_an_assertion_on_data_is_refused() -> None:
    program = Program.from_text("""
    func.func @main(%c: tensor<i1>) -> tensor<i1> {
      stablehlo.custom_call @shape_assertion(%c) {
        api_version = 2 : i32, error_message = "who knows", has_side_effect = true
      } : (tensor<i1>) -> ()
      return %c : tensor<i1>
    }
    """)
    with pytest.raises(ProgramError, match=r"depends on data.*who knows"):
        refine(program, [()])


def test_sizes_that_depend_on_data_are_refused() -> None:
    program = Program.from_text("""
    func.func @main(%n: tensor<1xi32>, %a: tensor<?xf32>) -> tensor<?xf32> {
      %r = stablehlo.dynamic_reshape %a, %n : (tensor<?xf32>, tensor<1xi32>) -> tensor<?xf32>
      return %r : tensor<?xf32>
    }
    """)
    with pytest.raises(ProgramError, match="dynamic dimension without a bound"):
        refine(program, [(1,), (4,)])
