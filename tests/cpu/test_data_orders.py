"""Convolutions in the order of their data: values, products, and that nothing is turned."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
from torch import nn

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import Convolution
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.data_orders import ConvolutionsInOrder
from tests.cpu.helpers import emitted

pytestmark = pytest.mark.usefixtures("fresh")

FLOAT = dtypes.of("float32")


class Net(nn.Module):
    """A large convolution, which is a call, and small ones behind it."""

    def __init__(self, kernel: int, step: int, padding: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 4, kernel, step, padding)
        self.third = nn.Conv2d(4, 6, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x).relu()).sigmoid())


@pytest.mark.parametrize("window", [(1, 1, 0), (1, 2, 0), (3, 1, 1), (2, 2, 0)])
def test_gradients_are_pytorchs(window: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    net, x = Net(*window), torch.randn(2, 8, 20, 20)
    found = []
    for function in (net, torch.compile(net, backend="pjrt")):
        net.zero_grad()
        side = x.clone().requires_grad_()
        result = function(side)
        result.square().mean().backward()
        found.append([result.detach(), side.grad, *(p.grad for p in net.parameters())])
    for ours, eager in zip(found[1], found[0], strict=True):
        assert ours is not None
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


def convolved(
    b: Builder, kernels: Kernels, letters: tuple[str, str, str], sizes: tuple[int, int, int]
) -> Value:
    """A convolution of arguments that have channels last in memory, in logical order."""
    rank = len(letters[0])
    back = (0, rank - 1, *range(1, rank - 1))
    x, y = b.parameters
    x = b.transpose(x, back)
    if letters[0].startswith("C"):
        y = b.transpose(y, back)
    step, padding, distance = sizes
    how = Convolution(
        window_strides=[step] * (rank - 2),
        padding=[(padding, padding)] * (rank - 2),
        lhs_dilation=[1] * (rank - 2),
        rhs_dilation=[distance] * (rank - 2),
        dimension_numbers=letters,
    )
    return kernels.convolution(b, x, y, how, accumulator=FLOAT, dtype=FLOAT)


CASES = [
    (kind, spatial, sizes)
    for kind, spatial, sizes in itertools.product(
        ("forward", "data", "weight"), ("W", "HW", "DHW"), ((1, 0, 1), (2, 0, 1), (1, 1, 2))
    )
]


@pytest.mark.parametrize(("kind", "spatial", "sizes"), CASES)
@pytest.mark.parametrize("places", [1, 2, 5])
def test_each_kind_is_the_portable_form(
    client: Client, kind: str, spatial: str, sizes: tuple[int, int, int], places: int
) -> None:
    rng = np.random.default_rng(0)
    count = len(spatial)
    letters, shape = {
        "forward": (("NC", "OI", "NC"), (4, 3)),
        "data": (("NC", "IO", "NC"), (3, 4)),
        "weight": (("CN", "IO", "NC"), (2, *[places] * count, 4)),
    }[kind]
    numbers = tuple(part + spatial for part in letters)
    other = shape if kind == "weight" else (*shape, *[places] * count)
    arrays = [
        rng.standard_normal(each).astype(np.float32) for each in ((2, *[5] * count, 3), other)
    ]

    def program(kernels: Kernels) -> tuple[str, np.ndarray]:
        b = Builder([TensorType(item.shape, FLOAT) for item in arrays])
        found: Value = convolved(b, kernels, numbers, sizes)
        made = b.finish([found])
        return made.text, np.asarray(client.compile(made)(*arrays)[0])

    try:
        _, expected = program(Kernels())
    except ValueError:
        pytest.skip("the window is larger than the data")
    text, ours = program(ConvolutionsInOrder())
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    is_plain = sizes == (1, 0, 1) and places == (5 if kind == "weight" else 1)
    assert ("stablehlo.convolution" in text) != is_plain
    assert ("stablehlo.dot_general" in text) == is_plain


@pytest.mark.usefixtures("convolved_by_onednn")
def test_what_is_saved_between_small_convolutions_is_not_turned() -> None:
    """Each array of the data is (batch, height, width, channels) wherever it is in memory."""
    net, x = Net(1, 1, 0), torch.randn(2, 8, 20, 20)
    text = emitted(net, x)
    shapes = re.findall(r"stablehlo\.convolution.*-> tensor<([\dx]+)xf32>", text)
    assert not [shape for shape in shapes if shape.startswith(("2x4x20", "2x6x20"))]


@pytest.mark.usefixtures("convolved_by_onednn")
def test_what_is_cut_or_padded_keeps_the_order() -> None:
    torch.manual_seed(0)
    first, second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 3)

    def net(x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.pad(first(x).relu(), (0, 1, 2, 1))
        return second(y[:, :, 1:, ::2].tanh())

    x = torch.randn(2, 8, 20, 20)
    text = emitted(net, x)
    shapes = re.findall(r"stablehlo\.(?:pad|slice).*-> tensor<([\dx]+)xf32>", text)
    assert shapes
    assert all(shape.endswith("x16") for shape in shapes)
    torch.testing.assert_close(torch.compile(net, backend="pjrt")(x), net(x))
