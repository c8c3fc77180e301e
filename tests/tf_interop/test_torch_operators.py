"""Functions of TensorFlow that torch calls."""

from typing import Any

import pytest
import tensorflow as tf
import torch

from pjrt_bridge.errors import OptionError, ProgramError
from pjrt_bridge.tf_interop import torch_op
from pjrt_bridge.torch_interop import compiled_graphs

pytestmark = pytest.mark.usefixtures("fresh")


@torch_op
def layer(x: Any, w: Any, scale: Any = 2.0) -> Any:
    return {"y": tf.nn.gelu(tf.matmul(x, w)) * scale, "most": (tf.argmax(x, axis=1), None)}


def _expected(x: torch.Tensor, w: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w) * scale


def test_nesting_and_gradients_in_eager() -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    found, expected = layer(x, w), _expected(x, w)
    assert torch.equal(found["most"][0], x.argmax(1))
    assert found["most"][1] is None
    torch.testing.assert_close(found["y"], expected)
    torch.testing.assert_close(
        torch.autograd.grad(found["y"].sum(), (x, w)), torch.autograd.grad(expected.sum(), (x, w))
    )


def test_gradients_of_gradients() -> None:
    function = torch_op(tf.function(lambda x: tf.sin(x) ** 3))
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


def test_it_is_part_of_the_program_of_a_graph() -> None:
    w = torch.randn(4, 5)
    compiled = torch.compile(
        lambda x: layer(x * 2, w, scale=3.0)["y"].sum(), backend="pjrt", fullgraph=True
    )
    for rows in (3, 4):
        x = torch.randn(rows, 4, requires_grad=True)
        (found,) = torch.autograd.grad(compiled(x), x)
        (expected,) = torch.autograd.grad(_expected(x * 2, w, 3.0).sum(), x)
        torch.testing.assert_close(found, expected)
    for graph in compiled_graphs():
        assert [segment.placement for segment in graph.segments] == ["device"]


def _halved(x: Any, times: int) -> Any:
    for _ in tf.range(times):
        if tf.reduce_sum(x) > 1.0:
            x = x / 2.0
    return x


def test_loops_and_conditions_over_tensors() -> None:
    halved = torch_op(_halved, static_argnames="times")
    assert halved(torch.full((2,), 8.0), times=3).tolist() == [1.0, 1.0]
    assert halved(torch.full((2,), 1.0), times=3).tolist() == [0.5, 0.5]


def test_what_is_refused() -> None:
    variable = tf.Variable(tf.ones(4))
    with pytest.raises(ProgramError, match=r"found 1 variables or large constants"):
        torch_op(lambda x: x + variable)(torch.ones(4))
    with pytest.raises(ProgramError, match=r"on plugin 'cpu'"):
        torch_op(lambda x: tf.strings.length(tf.as_string(x)))(torch.ones(4))
    with pytest.raises(OptionError, match="found an argument of type str"):
        layer(torch.ones(2, 2), "text")


def test_results_whose_sizes_depend_on_data_are_refused() -> None:
    places = torch_op(lambda x: tf.where(x > 0))
    with pytest.raises(ProgramError, match=r"shape \(None, 1\), whose sizes depend on data"):
        places(torch.ones(2))


def test_functions_that_the_same_code_calls_are_told_apart() -> None:
    x, found = torch.arange(6.0).reshape(2, 3), []
    for function in (lambda x: x * 2, lambda x: x + 5):
        operator = torch_op(function)
        compiled = torch.compile(
            lambda x, operator=operator: operator(x), backend="pjrt", fullgraph=True
        )
        found.append(compiled(x))
    torch.testing.assert_close(found, [x * 2, x + 5])
