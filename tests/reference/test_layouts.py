"""Custom layouts on a plugin that reorders elements, and has memory of its own."""

import itertools

import numpy as np
import pytest
import torch

from pjrt_bridge.runtime import Client, Layout
from pjrt_bridge.runtime.buffers.relayout import LayoutHandling
from pjrt_bridge.stablehlo import Program
from tests import programs

BASE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
ORDERS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize("fixture", ["client", "host_client"])
def test_every_order(request: pytest.FixtureRequest, fixture: str) -> None:
    client: Client = request.getfixturevalue(fixture)
    assert client.layout_handling is LayoutHandling.REORDERS
    assert client.reads_in_memory_order
    identity = Program.parse(programs.identity("tensor<2x3x4xf32>"))
    for given, made in zip(ORDERS, reversed(ORDERS), strict=True):
        executable = client.compile(identity.with_layouts({0: given}, {0: made}))
        for array in (BASE, np.asfortranarray(BASE), BASE[:, ::-1]):
            buffer = client.put(array, layout=given)
            assert buffer.layout == Layout(given)
            np.testing.assert_array_equal(buffer.to_numpy(), array)
            for argument in (array, buffer):
                (result,) = executable(argument)
                assert result.layout == Layout(made)
                np.testing.assert_array_equal(result.to_numpy(), array)


def test_parameters_and_results_of_torch() -> None:
    torch.compiler.reset()
    layer = torch.nn.Linear(6, 5)
    layouts = {"parameters": "column-major", "results": "column-major"}
    options = {"plugin": "reference", "layouts": layouts, "fallback": "error"}
    run = torch.compile(layer, backend="pjrt", options=options)
    x = torch.randn(4, 6)
    for _ in range(3):
        found = run(x)
        torch.testing.assert_close(found, layer(x), check_stride=False)
        assert found.t().is_contiguous()
        with torch.no_grad():
            layer.weight.add_(1)
    torch.compiler.reset()
