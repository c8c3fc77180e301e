"""Shared values on the plugin: a network of many blocks does not compute the first ones again."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import pjrt_bridge
from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.compat import decompositions
from pjrt_bridge.torch_interop.emit import emit
from pjrt_bridge.torch_interop.lookup import kernels_of, lookup

pytestmark = pytest.mark.usefixtures("fresh")


class Blocks(nn.Module):
    """Residual connections, normalized behind the sum as BERT does it, or before as GPT-2 does."""

    def __init__(self, count: int, behind: bool) -> None:
        super().__init__()
        self.behind = behind
        self.linear = nn.ModuleList(nn.Linear(64, 64) for _ in range(count))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear, norm in zip(self.linear, self.norms, strict=True):
            x = norm(x + linear(x)) if self.behind else x + linear(norm(x))
        return x


def cost(count: int, behind: bool) -> float:
    """Bytes that the compiled network reads and writes, by the compiler's own count."""
    model = Blocks(count, behind)
    client = pjrt_bridge.client("cpu")
    with torch.no_grad():
        module = make_fx(model, decompositions())(torch.empty(4, 128, 64))
    outputs = module.graph.output_node()
    outputs.args = ([outputs.args[0]],)
    emitted = emit(module, lookup(client), name="blocks", kernels=kernels_of(client))
    return client.compile(emitted.program).cost()["bytes accessed"]


@pytest.mark.parametrize("behind", [True, False])
def test_each_block_of_a_network_costs_the_same(behind: bool) -> None:
    two, four, eight = (cost(count, behind) for count in (2, 4, 8))
    assert eight - four == pytest.approx(2 * (four - two), rel=0.02)


@pytest.mark.parametrize("behind", [True, False])
def test_what_is_stored_changes_no_number(behind: bool) -> None:
    model, x = Blocks(4, behind), torch.randn(4, 128, 64)
    compiled = torch.compile(model, backend="pjrt", options={"fallback": "error"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_programs_with_stored_values_are_written_and_read() -> None:
    x = np.arange(6, dtype=np.float32)
    builder = Builder([TensorType((6,), dtypes.of("float32"))])
    once = builder.stored(builder.negate(builder.parameters[0]))
    written = builder.finish([builder.exp(once), builder.tanh(once)])
    client = pjrt_bridge.client("cpu")
    executable = client.deserialize(client.compile(written).serialize())
    for found, function in zip(executable(x), (np.exp, np.tanh), strict=True):
        np.testing.assert_allclose(np.asarray(found), function(-x), rtol=1e-5)
