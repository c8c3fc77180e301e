"""Nodes that are a layout of others: their elements are those, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pjrt_bridge.torch_interop.passes.attention.elements import (
    ahead,
    are_alike,
    behind,
    has_shape_at_end,
    turned,
)
from tests.extent import examples

Layout = Callable[[Tensor], Tensor]


@st.composite
def layouts(draw: st.DrawFn) -> list[Layout]:
    """Views and copies of a tensor, of which some exchange dimensions."""
    sizes = [2, 1, 3, 4]
    steps: list[Layout] = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["permute", "unsqueeze", "squeeze", "copy", "view", "expand"]))
        if kind == "permute":
            order = draw(st.permutations(range(len(sizes))))
            steps.append(lambda x, order=order: x.permute(order))
            sizes = [sizes[dim] for dim in order]
        elif kind == "unsqueeze":
            dim = draw(st.integers(0, len(sizes)))
            steps.append(lambda x, dim=dim: x.unsqueeze(dim))
            sizes.insert(dim, 1)
        elif kind == "squeeze":
            steps.append(torch.squeeze)
            sizes = [size for size in sizes if size != 1]
        elif kind == "copy":
            steps.append(lambda x: x.clone(memory_format=torch.contiguous_format))
        elif kind == "view":
            steps.append(lambda x: x.contiguous().flatten(0, 1) if x.dim() > 1 else x)
            sizes = [sizes[0] * sizes[1], *sizes[2:]] if len(sizes) > 1 else sizes
        else:
            steps.append(lambda x: x.expand(x.shape))
    return steps


@settings(max_examples=examples(60), deadline=None)
@given(layouts())
def test_all_of_a_chain_have_the_same_elements_in_order(steps: list[Layout]) -> None:
    def function(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x.sin()

    x = torch.arange(24.0).reshape(2, 1, 3, 4)
    graph = make_fx(function, tracing_mode="fake")(x).graph
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = x
        elif node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    (root,), (sine,) = (
        graph.find_nodes(op="placeholder"),
        graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default),
    )
    last = sine.args[0]
    for chain in (behind(last), ahead(root)):
        assert chain.same[0] in (last, root)
        assert set(chain.same) <= set(chain.nodes)
        for node in chain.same:
            assert torch.equal(values[node].flatten(), values[chain.same[0]].flatten())
    # All of them that are in order are found.
    if torch.equal(values[last].flatten(), x.flatten()) and len(steps) == 1:
        assert behind(last).same[-1] is root


def test_two_permutations_that_cancel_are_a_layout() -> None:
    def function(x: Tensor) -> Tensor:
        return x.permute(2, 0, 1).permute(1, 2, 0).sin()

    graph = make_fx(function, tracing_mode="fake")(torch.ones(2, 3, 4)).graph
    root, first, second, *_ = graph.nodes
    assert behind(second) == ([second, root], [second, first, root])
    assert ahead(root) == ([root, second], [root, first, second])


def test_what_is_read_twice_ends_a_chain() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.unsqueeze(0)
        return y.squeeze(0).sin(), y.cos()

    root, view, *_ = make_fx(function, tracing_mode="fake")(torch.ones(2, 3)).graph.nodes
    assert ahead(root).same == [root, view]


@pytest.mark.parametrize(
    ("function", "is_layout"),
    [
        (lambda x: x.to(torch.bfloat16), True),
        (lambda x: x.to(torch.int32), False),
        (lambda x: x.expand(5, 2, 3), False),
        (lambda x: x.transpose(0, 1), False),
        (lambda x: x[1:], False),
        (lambda x: x + 0, False),
    ],
    ids=["other floats", "integers", "repeated", "turned", "part", "computed"],
)
def test_what_is_a_layout(function: Layout, is_layout: bool) -> None:
    graph = make_fx(function, tracing_mode="fake")(torch.ones(2, 3)).graph
    *_, node, _ = graph.nodes
    assert (len(behind(node).same) == 2) is is_layout


def test_transposed() -> None:
    graph = make_fx(lambda x: x.transpose(-1, -2), tracing_mode="fake")(torch.ones(4, 2, 3)).graph
    root, node, _ = graph.nodes
    assert turned(node) is root
    assert turned(root) is None
    assert has_shape_at_end(node, (3, 2))
    assert not has_shape_at_end(node, (2, 3))
    assert are_alike((1, 2, 3), (2, 1, 3, 1))
    assert not are_alike((2, 3), (3, 2))
