"""Operators of torch that are written in StableHLO."""

from typing import Any

import numpy as np
import pytest
import torch

from pjrt_bridge import client
from pjrt_bridge.errors import ArgumentError, OptionError, ProgramError
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.torch_interop import compiled_graphs, custom_op, export

pytestmark = pytest.mark.usefixtures("fresh")

PAIR = """
func.func public @main(%x: tensor<2xf32>, %y: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %0 = stablehlo.add %x, %y : tensor<2xf32>
  return %0, %x : tensor<2xf32>, tensor<2xf32>
}
"""


def _scaled(b: Any, x: Any, *, factor: float) -> Any:
    return b.multiply(x, b.full(x.shape, factor, x.dtype))


def _backward(arguments: Any, results: Any, gradients: Any) -> Any:
    return scale(gradients[0], arguments[1])


scale = custom_op(
    "pjrt_bridge_tests::scale",
    _scaled,
    schema="(Tensor x, float factor=2.0) -> Tensor",
    backward=_backward,
)
pair = custom_op("pjrt_bridge_tests::pair", PAIR)


def test_a_builder_in_eager() -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert torch.equal(scale(x), 2 * x)
    assert torch.equal(scale(x, factor=3.0), 3 * x)
    # The program depends on the number, and on how a tensor lies in memory.
    assert torch.equal(scale(torch.ones(2, 3).t(), 4.0), torch.full((3, 2), 4.0))


def test_gradients_and_changing_sizes_in_one_segment() -> None:
    compiled = torch.compile(lambda x: scale(x * x, 3.0).sum(), backend="pjrt", fullgraph=True)
    for size in (3, 4, 5):
        x = torch.full((size,), 2.0, requires_grad=True)
        compiled(x).backward()
        assert x.grad is not None
        assert x.grad.tolist() == [12.0] * size
    for graph in compiled_graphs():
        assert [segment.placement for segment in graph.segments] == ["device"]


def test_a_program_for_certain_types() -> None:
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    added, same = pair(x, y)
    assert added.tolist() == [4.0, 6.0]
    assert same.tolist() == [1.0, 2.0]
    assert same.data_ptr() != x.data_ptr()
    compiled = torch.compile(lambda a, b: pair(a + 1, b)[0] * 2, backend="pjrt", fullgraph=True)
    assert compiled(x, y).tolist() == [10.0, 14.0]
    with pytest.raises(ProgramError, match=r"operand 0: found f32\[3\], expected f32\[2\]"):
        pair(torch.ones(3), y)


def test_resident_tensors() -> None:
    x = torch.ones(2, device="pjrt")
    found = scale(x, 5.0)
    assert found.device.type == "pjrt"
    assert found.cpu().tolist() == [5.0, 5.0]


def test_exported_models_contain_the_program() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return pair(x, scale(y, 3.0))[0]

    model = export(Model(), (torch.ones(2), torch.ones(2)))
    assert "pjrt_bridge_tests" not in model.program.text
    found = model.load_on(client("cpu"))(np.float32([1, 2]), np.float32([3, 4]))
    np.testing.assert_array_equal(np.asarray(found), [10, 14])


def test_torchs_own_checks_of_operators() -> None:
    for x in (torch.ones(3), torch.ones(3, requires_grad=True)):
        assert set(torch.library.opcheck(scale, (x, 2.0)).values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("name", "program", "schema", "error", "message"),
    [
        ("plain", PAIR, None, OptionError, "found 'plain', expected 'namespace::operator'"),
        ("::name", PAIR, None, OptionError, "found '::name', expected 'namespace::operator'"),
        ("name::", PAIR, None, OptionError, "found 'name::', expected 'namespace::operator'"),
        ("a b::name", PAIR, None, OptionError, "found 'a b::name', expected"),
        ("__class__::name", PAIR, None, OptionError, "found '__class__::name', expected"),
        ("pjrt_bridge_tests::c", 7, None, ArgumentError, "program: found 7, expected"),
        ("pjrt_bridge_tests::c", 7, "(Tensor x) -> Tensor", ArgumentError, "program: found 7"),
        ("aten::relu", PAIR, None, OptionError, "has an operator 'aten::relu' already"),
        ("pjrt_bridge_tests::a", "nothing", None, ProgramError, "'nothing' is unknown"),
        ("pjrt_bridge_tests::b", PAIR, "(Tensr x) -> y", OptionError, "schema .* 'pjrt_bridge"),
    ],
)
def test_what_cannot_be_registered(
    name: str, program: Any, schema: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        custom_op(name, program, schema=schema)


@pytest.mark.parametrize("what", ["fake", "backward"])
def test_what_is_no_function(what: str) -> None:
    given: dict[str, Any] = {what: 3}
    with pytest.raises(ArgumentError, match=f"custom_op: {what}: found 3, expected a function"):
        custom_op("pjrt_bridge_tests::d", PAIR, **given)
    assert not hasattr(torch.ops.pjrt_bridge_tests, "d")


def test_gradients_of_another_number() -> None:
    op = custom_op(
        "pjrt_bridge_tests::negated",
        lambda b, x: b.negate(x),
        schema="(Tensor x) -> Tensor",
        backward=lambda arguments, results, gradients: (gradients[0], gradients[0]),
    )
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ProgramError, match="found 2 gradients, expected one for each of 1 tensors"):
        op(x).sum().backward()


def test_a_program_object_is_taken_too() -> None:
    op = custom_op("pjrt_bridge_tests::pair_again", Program.from_text(PAIR))
    assert op(torch.ones(2), torch.ones(2))[0].tolist() == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("op", [lambda x: scale(x, 3.0), lambda x: pair(x, x)[0]])
@pytest.mark.parametrize("backend", [None, "pjrt"])
def test_tangents_are_refused(op: Any, backend: str | None) -> None:
    def function(x: torch.Tensor, tangent: torch.Tensor) -> Any:
        return torch.func.jvp(lambda y: op(y * 2) + y, (x,), (tangent,))

    run = function if backend is None else torch.compile(function, backend=backend)
    with pytest.raises(Exception, match="found an argument with a tangent"):
        run(torch.ones(2), torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        # What has no tangent is computed.
        assert torch.equal(op(torch.ones(2)), op(torch.ones(2)))
