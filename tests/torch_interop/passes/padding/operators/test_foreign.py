"""Sizes that change in graphs with functions of JAX."""

from typing import Any

import pytest
import torch

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from pjrt_bridge.errors import OptionError  # noqa: E402
from pjrt_bridge.jax_interop import torch_op  # noqa: E402
from pjrt_bridge.torch_interop import compiled_graphs  # noqa: E402
from tests.torch_interop.helpers import assert_same  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")

SIZES = (5, 7, 6, 11, 13, 9, 14, 10, 12)


def _normalized(x: Any, weight: Any) -> Any:
    scaled = jax.nn.gelu(x @ weight)
    return {"y": scaled / jnp.linalg.norm(scaled, axis=-1, keepdims=True), "sum": scaled.sum(-1)}


def _expected(x: torch.Tensor, weight: torch.Tensor) -> Any:
    scaled = torch.nn.functional.gelu(x @ weight, approximate="tanh")
    return {"y": scaled / scaled.norm(dim=-1, keepdim=True), "sum": scaled.sum(-1)}


def _program(function: Any) -> Any:
    def call(x: torch.Tensor, weight: torch.Tensor) -> Any:
        found = function(x.sin(), weight)
        return found["y"].sum(0), found["sum"].amax(), found["y"] * 2

    return call


def test_a_function_of_rows_shares_programs() -> None:
    run = torch.compile(_program(torch_op(_normalized, row_dims=1)), backend="pjrt", dynamic=True)
    weight = torch.randn(8, 6)
    for rows in SIZES:
        x = torch.randn(rows, 8)
        assert_same(run(x, weight), _program(_expected)(x, weight), rtol=1e-4, atol=1e-5)
    # Sizes of the first call, and two sizes that others are padded to.
    assert len(compiled_graphs()) <= 3
    assert all(graph.on_device == len(graph.segments) == 1 for graph in compiled_graphs())


def test_a_function_of_which_nothing_is_said_is_right() -> None:
    run = torch.compile(_program(torch_op(_normalized)), backend="pjrt", dynamic=True)
    weight = torch.randn(8, 6)
    for rows in SIZES[:4]:
        x = torch.randn(rows, 8)
        assert_same(run(x, weight), _program(_expected)(x, weight), rtol=1e-4, atol=1e-5)
    _, *others = compiled_graphs()
    assert len(others) == 3
    assert all("does not say that it keeps rows apart (row_dims=)" in g.trigger for g in others)


def _elementwise(x: Any, y: Any, scale: Any) -> Any:
    return jnp.maximum(x, y) * scale


def test_an_elementwise_function_is_padded_in_all_dimensions() -> None:
    function = torch_op(_elementwise, row_dims=2)
    run = torch.compile(lambda x, y, s: function(x, y, s).sum(), backend="pjrt", dynamic=True)
    for rows, columns in ((5, 6), (7, 5), (6, 7), (8, 8), (5, 5), (7, 8)):
        x, y, scale = torch.randn(rows, columns), torch.randn(1, columns), torch.randn(rows, 1)
        assert_same(run(x, y, scale), (torch.maximum(x, y) * scale).sum(), rtol=1e-4, atol=1e-5)
    assert len(compiled_graphs()) <= 3


def test_dimensions_that_are_not_kept_apart_are_not_padded() -> None:
    function = torch_op(lambda x: jnp.cumsum(x[:, ::-1], 1), row_dims=1)
    run = torch.compile(lambda x: function(x) * 2, backend="pjrt", dynamic=True)
    for columns in (5, 6, 7):
        x = torch.randn(3, columns)
        assert_same(run(x), x.flip(1).cumsum(1) * 2, rtol=1e-4, atol=1e-5)
    assert len(compiled_graphs()) == 3


def test_gradients_with_sizes_that_change() -> None:
    function = torch_op(_normalized, row_dims=1)
    run = torch.compile(_program(function), backend="pjrt", dynamic=True)
    for rows in SIZES[:3]:
        x, weight = torch.randn(rows, 8, requires_grad=True), torch.randn(8, 6, requires_grad=True)
        found = torch.autograd.grad(sum(item.sum() for item in run(x, weight)), (x, weight))
        wanted = _program(_expected)(x, weight)
        expected = torch.autograd.grad(sum(item.sum() for item in wanted), (x, weight))
        assert_same(found, expected, rtol=1e-4, atol=1e-4)


def test_wrong_numbers_of_dimensions() -> None:
    with pytest.raises(OptionError, match=r"row_dims: found -1, expected 0 or more"):
        torch_op(_normalized, row_dims=-1)
    with pytest.raises(OptionError, match=r"row_dims: found 1 with random=True, expected 0"):
        torch_op(_normalized, row_dims=1, random=True)
