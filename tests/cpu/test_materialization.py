"""Shared values on the plugin: a network of many blocks does not compute the first ones again."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import pjrt_bridge
from pjrt_bridge import dtypes
from pjrt_bridge.errors import Unimplemented
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.compat import decompositions
from pjrt_bridge.torch_interop.emit.lookup import lookup
from pjrt_bridge.torch_interop.emit.program import emit
from pjrt_bridge_cpu.materialization import MaterializedValues

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


class Steps(nn.Module):
    """A recurrence that is written out: a state of each step, and a sum over it."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, sums = torch.ones_like(x), []
        for _ in range(self.count):
            state = (state * x.sigmoid() + x).tanh()
            sums.append((state * x).sum(-1))
        return torch.stack(sums)


def cost(model: nn.Module) -> float:
    """Bytes that the compiled network reads and writes, by the compiler's own count."""
    client = pjrt_bridge.client("cpu")
    with torch.no_grad():
        module = make_fx(model, decompositions())(torch.empty(4, 128, 64))
    outputs = module.graph.output_node()
    outputs.args = ([outputs.args[0]],)
    emitted = emit(module, lookup(client), name="blocks", kernels=kernels_of(client))
    try:
        return client.compile(emitted.program).cost()["bytes accessed"]
    except Unimplemented:
        pytest.skip("this build of the plugin tells no cost")


@pytest.mark.parametrize("behind", [True, False])
def test_each_block_of_a_network_costs_the_same(behind: bool) -> None:
    two, four, eight = (cost(Blocks(count, behind)) for count in (2, 4, 8))
    assert eight - four == pytest.approx(2 * (four - two), rel=0.02)


def test_each_step_of_a_recurrence_costs_the_same() -> None:
    ten, twenty, forty = (cost(Steps(count)) for count in (10, 20, 40))
    assert forty - twenty == pytest.approx(2 * (twenty - ten), rel=0.1)


@pytest.mark.parametrize("training", [False, True])
def test_a_recurrence_is_as_in_eager(training: bool) -> None:
    """Also of numbers that are not finite."""
    model, x = Steps(12), torch.randn(4, 128, 64, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0], x[1, 1, 1], x[2, 2, 2] = float("nan"), float("inf"), -float("inf")
    found = []
    for function in (model, torch.compile(model, backend="pjrt")):
        given = x.clone().requires_grad_(training)
        result = function(given)
        if training:
            (result,) = torch.autograd.grad(result.sum(), given)
        found.append(result.detach())
    torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("behind", [True, False])
def test_what_is_stored_changes_no_number(behind: bool) -> None:
    model, x = Blocks(4, behind), torch.randn(4, 128, 64)
    compiled = torch.compile(model, backend="pjrt", options={"fallback": "error"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


class Parts(nn.Module):
    """A picture in parts, as a vision transformer has it: they come from a convolution, across."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.parts = nn.Conv2d(3, 64, 4, 4, dtype=dtype)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64, dtype=dtype), nn.Linear(64, 64, dtype=dtype))
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.parts(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_normalized_by_rows_is_stored_by_rows(dtype: torch.dtype) -> None:
    client = pjrt_bridge.client("cpu")
    kernels = kernels_of(client)
    if not kernels.can_normalize:
        pytest.skip("this build of the plugin makes no calls")
    with torch.no_grad():
        module = make_fx(Parts(dtype), decompositions())(torch.empty(8, 3, 40, 24, dtype=dtype))
    outputs = module.graph.output_node()
    outputs.args = ([outputs.args[0]],)
    text = emit(module, lookup(client), name="parts", kernels=kernels).program.text
    makers = r"(?:call @stored_\d+|custom_call @pjrt_bridge\.expression\.\d+)"
    stored = re.findall(makers + r"\(.*-> tensor<([\dx]+)x\w+>", text)
    # The first is normalized; the last is the result, which lies as eager has it.
    assert stored == [*["8x60x64"] * 3, "8x64x60"]
    # The first one reads what the convolution gives.
    assert text.count("@pjrt_bridge.norm") == 2


@pytest.mark.parametrize("training", [False, True])
def test_parts_of_a_picture_are_as_in_eager(training: bool) -> None:
    model, x = Parts(), torch.randn(8, 3, 40, 24, generator=torch.Generator().manual_seed(0))
    found = []
    for function in (model, torch.compile(model, backend="pjrt", options={"fallback": "error"})):
        given = x.clone().requires_grad_(training)
        result = function(given)
        grads = torch.autograd.grad(result.square().sum(), given) if training else ()
        found.append((result.detach(), *grads))
        assert result.stride() == found[0][0].stride()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0)])
def test_what_a_call_gives_is_stored_in_its_order(order: tuple[int, ...]) -> None:
    """An argument of a function lies row-major: in another order it would be copied before it."""
    given = TensorType((2, 3, 4, 5), dtypes.of("float32"))
    builder = Builder([given])
    layout = tuple(reversed(order))
    (x,) = builder.custom_call(
        "some.call",
        builder.parameters,
        [given],
        backend_config={"n": np.array([1], np.int64)},
        operand_layouts=[(3, 2, 1, 0)],
        result_layouts=[layout],
    )
    shared = MaterializedValues().materialize(builder, builder.exp(x))
    assert shared.type == given
    text = builder.finish([shared]).text
    (argument,) = re.findall(r"call @stored_\d+\(%\w+\).*: \(tensor<(\w+)>", text)
    assert argument == "x".join(str(given.shape[dim]) for dim in order) + "xf32"
    # Row-major, such a transposition of what lies in that order moves nothing.
    turns = [
        [int(dim) for dim in dims.split(",")]
        for dims in re.findall(r"stablehlo.transpose .*dims = \[([^]]*)\]", text)
    ]
    back = [order.index(dim) for dim in range(4)]
    assert turns == ([] if order == (0, 1, 2, 3) else [list(order), back])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_stored_in_any_order_it_is_the_same_value(order: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    builder = Builder([TensorType((2, 3, 4), dtypes.of("float32"))])
    turned = builder.transpose(builder.parameters[0], order)
    once = MaterializedValues().materialize(builder, builder.exp(turned))
    client = pjrt_bridge.client("cpu")
    (found,) = client.compile(builder.finish([once]))(x)
    np.testing.assert_allclose(np.asarray(found), np.exp(x.transpose(order)), rtol=1e-5)


def test_programs_with_stored_values_are_written_and_read() -> None:
    x = np.arange(6, dtype=np.float32)
    builder = Builder([TensorType((6,), dtypes.of("float32"))])
    once = builder.stored(builder.negate(builder.parameters[0]))
    written = builder.finish([builder.exp(once), builder.tanh(once)])
    client = pjrt_bridge.client("cpu")
    executable = client.deserialize(client.compile(written).serialize())
    for found, function in zip(executable(x), (np.exp, np.tanh), strict=True):
        np.testing.assert_allclose(np.asarray(found), function(-x), rtol=1e-5)
