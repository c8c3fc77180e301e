"""What is known of computed integers holds for all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pjrt_bridge.torch_interop.passes.position_ranges import is_within, known_range

Function = Callable[[torch.Tensor], torch.Tensor]

KNOWN: dict[str, Function] = {
    "arange": lambda x: torch.arange(x.shape[0]),
    "from": lambda x: torch.arange(2, x.shape[0], 2),
    "sum": lambda x: torch.arange(3)[:, None] + torch.arange(x.shape[1]) + 1,
    "difference": lambda x: torch.arange(3) - torch.arange(x.shape[0])[:, None],
    "product": lambda x: torch.arange(3)[:, None] * torch.arange(4) * 2,
    "rest": lambda x: x.long() % 5,
    "clamped": lambda x: (x * 10).clamp(-2, 3).long(),
    "clamped on one side": lambda x: torch.arange(9).clamp(max=4),
    "place": lambda x: x.argmax(1),
    "place in all": lambda x: x.argmax(),
    "sorted": lambda x: x.sort(1)[1],
    "first": lambda x: x.topk(2, 0)[1],
    "largest": lambda x: x.max(1)[1],
    "order": lambda x: x.argsort(0),
    "joined": lambda x: torch.cat([torch.arange(2), torch.full((3,), 7)]),
    "chosen": lambda x: torch.where(x > 0, x.argmax(), 4),
    "truth": lambda x: (x > 0).long(),
    "moved": lambda x: torch.arange(12).reshape(3, 4).permute(1, 0)[1:].flip(0),
}
UNKNOWN: dict[str, Function] = {
    "data": lambda x: x.long(),
    "data and a number": lambda x: x.long() + 1,
    "negative products": lambda x: (torch.arange(3) - 2) * torch.arange(3),
    "chosen from data": lambda x: torch.where(x > 0, x.long(), 4),
    "running sum": lambda x: torch.arange(4).cumsum(0),
}


def traced(function: Function, x: torch.Tensor) -> torch.fx.Node:
    (end,) = make_fx(function, tracing_mode="fake")(x).graph.find_nodes(op="output")
    found = end.args[0]
    assert isinstance(found, torch.fx.Node)
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_all_elements_are_in_the_range(name: str) -> None:
    x = torch.linspace(-1, 1, 20).reshape(4, 5)
    node, values = traced(KNOWN[name], x), KNOWN[name](x)
    found = known_range(node)
    assert found is not None
    assert found[0] <= values.min() <= values.max() <= found[1]
    assert is_within(node, *found)
    assert not is_within(node, found[0] + 1, found[1])
    assert not is_within(node, found[0], found[1] - 1)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_depends_on_data_is_not_known(name: str) -> None:
    assert known_range(traced(UNKNOWN[name], torch.ones(4, 5))) is None


def test_of_a_long_chain_nothing_is_known() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        found = torch.arange(3)
        for _ in range(2000):
            found = found + 1
        return found

    assert known_range(traced(function, torch.ones(1))) is None
