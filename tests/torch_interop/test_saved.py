"""Values that forward saves for backward lie as the device computes them; results as promised."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import pjrt_bridge
from pjrt_bridge.errors import HostFallbackWarning
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.torch_interop.emit.lookup import lookup
from pjrt_bridge.torch_interop.emit.program import Emitted, emit
from pjrt_bridge.torch_interop.saved import mark_saved, take_as_saved
from tests.faults.segments import Faults
from tests.torch_interop.helpers import TRAINING, assert_same, assert_same_gradients, compiled

pytestmark = pytest.mark.usefixtures("fresh")


def emitted(*, like: Emitted | None = None, turns: bool = True, orders: bool = True) -> Emitted:
    """A program whose second result is saved, and lies across where it `turns`."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.transpose(1, 2).contiguous() if turns else x.reshape(2, 4, 3)
        return [y.sin(), y.cos()]

    module = make_fx(function)(torch.empty(2, 3, 4))
    mark_saved(module.graph, visible=1)
    client = pjrt_bridge.client("cpu")
    return emit(module, lookup(client), name="saved", orders_saved=orders, like=like)


def test_what_backward_alone_reads_is_not_turned() -> None:
    made = emitted()
    assert made.saved == {1: (12, 1, 4)}
    assert [spec.strides for spec in made.bindings.results] == [(12, 3, 1), (12, 1, 4)]
    assert not emitted(orders=False).saved


def test_a_program_that_is_emitted_again_has_the_order_of_the_first() -> None:
    first, plain = emitted(), emitted(turns=False)
    again = emitted(turns=False, like=first)
    assert (again.saved, plain.saved) == (first.saved, {})
    assert again.takes_as(first)
    assert not plain.takes_as(first)


def test_results_that_are_seen_or_viewed_lie_as_promised() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.exp()
        return [y, y, x.sin().mT, x.cos()]

    graph = make_fx(function)(torch.empty(2, 3)).graph
    mark_saved(graph, visible=1)
    marked = [node.name for node in graph.nodes if "pjrt_bridge_saved_for_backward" in node.meta]
    assert marked == ["cos"]


def test_backward_takes_arguments_as_they_were_saved() -> None:
    graph = make_fx(lambda x: [x.view(2, -1)])(torch.empty(2, 3, 4)).graph
    other = torch.empty(2, 4, 3).mT
    take_as_saved(graph, [other])
    argument, copied, *_ = graph.nodes
    assert argument.meta["val"] is other
    assert copied.meta["val"].is_contiguous()
    assert list(argument.users) == [copied]
    x = torch.randn(2, 4, 3).mT
    made = torch.fx.GraphModule({}, graph)
    torch.testing.assert_close(made(x)[0], x.reshape(2, -1))


class Network(nn.Module):
    """Its convolutions have channels last, and it returns one of the values that backward reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.tanh(self.norm(self.layers[0](x)))
        second = torch.sigmoid(self.layers[1](first))
        # PyTorch refuses to view what lies in another order.
        return first, self.layers[2](second).view(len(x), -1).square().sum(1)


def gradients(call: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    """What a network gives, and the gradient of its argument."""
    x = x.clone().requires_grad_()
    results = call(x)
    sum(item.square().sum() for item in results).backward()
    return [*(item.detach() for item in results), x.grad]


def assert_like_eager(model: nn.Module, call: Callable[..., Any], x: torch.Tensor) -> None:
    """Results, strides and gradients of a compiled network are those of eager."""
    other = copy.deepcopy(model)
    model.zero_grad()
    assert_same(gradients(call, x), gradients(other, x), rtol=1e-3, atol=1e-4)
    assert_same_gradients(model, other)


X = torch.randn(4, 8, 20, 20, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("failing", TRAINING)
def test_pytorch_computes_what_fails(faults: Faults, failing: str) -> None:
    model = Network()
    run = compiled(model, fallback="host")
    assert_like_eager(model, run, X)
    faults.failing = (failing, "start")
    with pytest.warns(HostFallbackWarning, match="failed on the device"):
        assert_like_eager(model, run, X)


def test_a_graph_in_parts() -> None:
    model = Network()
    assert_like_eager(model, compiled(model, fallback="host", host_ops=["aten.sigmoid"]), X)


def test_sizes_that_change() -> None:
    model = Network()
    run = compiled(model, fallback="host")
    for size in (4, 6, 8):
        assert_like_eager(model, run, torch.randn(2, 8, size, 20))


def test_what_is_saved_across_is_written_once() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.transpose(1, 2).contiguous().tan()
        return [y.sum(), y]

    module = make_fx(function)(torch.empty(2, 128, 128))
    mark_saved(module.graph, visible=1)
    client = pjrt_bridge.client("cpu")
    made = emit(
        module,
        lookup(client),
        name="saved",
        orders_saved=True,
        kernels=kernels_of(client),
    )
    assert made.program.text.count("call @stored") == 1
