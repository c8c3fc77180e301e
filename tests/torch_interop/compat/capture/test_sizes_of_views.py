"""Views have the sizes that they were asked for, in every call of one graph."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode, fake_impls
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from pjrt_bridge.torch_interop import compat, compiled_graphs
from pjrt_bridge.torch_interop.compat.capture import sizes_of_views
from tests.torch_interop.helpers import assert_same


@pytest.mark.parametrize("ours", [False, True])
def test_views_have_the_sizes_that_were_asked_for(
    ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = dict(fake_impls.op_implementations_dict)
    monkeypatch.setattr(fake_impls, "op_implementations_dict", table)
    sizes_of_views.keep_sizes_of_views(lambda: ours)
    view = table[torch.ops.aten.view.default]
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.randn(2, 12, 3))
    length = x.shape[1]
    assert isinstance(length, torch.SymInt)
    with mode:
        blocks = x.new_ones((2, length // 4, 4, 3))
        made = view(mode, torch.ops.aten.view.default, blocks, [2, length, -1])
    assert (compat.expression(made.shape[1]) == compat.expression(length)) is ours
    assert made.shape == (2, 12, 3)
    assert made.stride() == (36, 3, 1)


@pytest.mark.usefixtures("fresh")
def test_attention_within_a_window() -> None:
    """Sizes that are known are combined with those of views of `n // 4` times 4 elements."""
    config = LongformerConfig(hidden_size=8, num_attention_heads=2, attention_window=[8])
    layer = LongformerSelfAttention(config, 0)

    def scores(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = layer._sliding_chunks_query_key_matmul(x, x * 2, 4)
        more = layer._sliding_chunks_query_key_matmul(torch.ones_like(mask), mask, 4)
        probabilities = (found + more).softmax(-1)
        return layer._sliding_chunks_matmul_attn_probs_value(probabilities, x, 4)

    run = torch.compile(scores, backend="pjrt", fullgraph=True)
    for count in (2, 3, 5, 7, 4, 11, 6):
        x, mask = torch.randn(2, 8 * count, 2, 4), torch.zeros(2, 8 * count, 1, 1)
        mask[1, 4 * count :] = -1e4
        assert_same(run(x, mask), scores(x, mask), rtol=1e-4, atol=1e-5)
    assert len(compiled_graphs()) <= 4
    assert all(s.placement == "device" for graph in compiled_graphs() for s in graph.segments)
