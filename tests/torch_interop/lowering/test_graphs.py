"""Whole traced graphs, forward and backward, through all of their lowerings at once."""

import pytest
import torch
from torch._decomp import core_aten_decompositions
from torch.nn import functional as F  # noqa: N812

from tests.torch_interop.lowering.harness import BOTH, compare, lower_graph, trace

torch.manual_seed(0)
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def decompositions():
    """The core table without attention, whose decomposition breaks its own backward."""
    table = core_aten_decompositions()
    table.pop(FLASH)
    return table


def check_graph(loss, *args, leaves):
    """Compare value and gradients with respect to the first `leaves` arguments."""
    both = torch.func.grad_and_value(loss, argnums=tuple(range(leaves)))

    def step(*values):
        gradients, value = both(*values)
        return [value, *gradients]

    graph = trace(step, *args, table=decompositions())
    for engine in BOTH:
        compare(lower_graph(graph, *args, engine=engine), step(*args))
    return {str(node.target) for node in graph.nodes}


def test_perceptron_with_cross_entropy():
    def loss(w1, b1, w2, x, target):
        return F.cross_entropy(F.linear(F.gelu(F.linear(x, w1, b1)), w2), target)

    target = torch.tensor([1, 0, -100, 2])
    args = (torch.randn(6, 5), torch.randn(6), torch.randn(3, 6), torch.randn(4, 5), target)
    check_graph(loss, *args, leaves=3)


def test_convolution_block():
    def loss(w, gamma, beta, head, x):
        y = F.group_norm(F.conv2d(x, w, stride=2, padding=1), 2, gamma, beta)
        y = F.max_pool2d(F.relu(y), 3, 2, 1)
        y = F.adaptive_avg_pool2d(F.hardtanh(y, 0, 6), 1).flatten(1)
        return F.log_softmax(F.linear(y, head), -1).square().mean()

    args = (
        *(torch.randn(4, 3, 3, 3), torch.rand(4), torch.randn(4), torch.randn(5, 4)),
        torch.randn(2, 3, 9, 9),
    )
    check_graph(loss, *args, leaves=4)


@pytest.mark.parametrize("causal", [True, False])
def test_transformer_block(causal):
    def loss(table, gain, bias, qkv, out, tokens):
        x = F.embedding(tokens, table, padding_idx=0)
        h = F.layer_norm(x, (8,), gain, bias)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in F.linear(h, qkv).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + F.linear(y.transpose(1, 2).flatten(2), out)
        return F.silu(x).std()

    args = (
        *(torch.randn(7, 8), torch.rand(8), torch.randn(8), torch.randn(24, 8)),
        *(torch.randn(8, 8), torch.tensor([[1, 0, 3], [6, 6, 2]])),
    )
    operators = check_graph(loss, *args, leaves=5)
    assert f"{str(FLASH).removesuffix('.default')}_backward.default" in operators


def test_indexing_and_scanning():
    def loss(x, index):
        y = x[index].cumsum(0) * torch.arange(4)
        y = torch.where(y > 0, y, y.exp()).topk(2, -1).values
        return y.sort(-1, descending=True).values.amax(0).norm()

    check_graph(loss, torch.randn(5, 4), torch.tensor([0, -1, 2, 2]), leaves=1)
