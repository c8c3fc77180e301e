"""Compiled functions that are called with FakeTensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext


def function(x: Tensor) -> Tensor:
    return x.sin().sum(0) + x.shape[0]


def test_before_and_after_other_tensors() -> None:
    compiled = torch.compile(function, backend="pjrt")
    x = torch.randn(3, 4)
    for _ in range(2):
        with FakeTensorMode() as mode:
            found = compiled(mode.from_tensor(torch.randn(5, 4)))
        assert isinstance(found, FakeTensor)
        assert found.shape == (4,)
        torch.testing.assert_close(compiled(x), function(x))


def test_symbolic_sizes() -> None:
    compiled = torch.compile(function, backend="pjrt", dynamic=True)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        sizes: Any = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.DYNAMIC])
        x = mode.from_tensor(torch.randn(5, 4), symbolic_context=sizes)
        assert compiled(x).shape == (4,)


def test_a_module_with_gradients() -> None:
    module = nn.Linear(4, 2)
    compiled = torch.compile(module, backend="pjrt")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = mode.from_tensor(torch.randn(3, 4, requires_grad=True))
        found = compiled(x)
        assert found.shape == (3, 2)
        found.sum().backward()
        assert x.grad is not None
        assert x.grad.shape == (3, 4)
    real = torch.randn(3, 4)
    torch.testing.assert_close(compiled(real), module(real))


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_without_arguments_that_are_tensors(dynamic: bool) -> None:
    def made(size: int) -> Tensor:
        return torch.arange(size) * 2

    compiled = torch.compile(made, backend="pjrt", dynamic=dynamic)
    for _ in range(2):
        for size in (3, 4):
            with FakeTensorMode():
                found = compiled(size)
            assert isinstance(found, FakeTensor)
            assert found.shape == (size,)
            torch.testing.assert_close(compiled(size), made(size))
