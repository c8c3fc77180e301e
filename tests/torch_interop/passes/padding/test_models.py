"""Models whose batch is padded to buckets."""

import pytest
import torch
import transformers
from torch import nn

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.passes.padding.support import BUCKETS, assert_equal, bucketed

pytestmark = pytest.mark.usefixtures("fresh")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Linear(16, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)).log_softmax(-1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)[:, :48].unflatten(1, (6, 8))
        return self.layer(x, x, x, need_weights=False)[0] + x


@pytest.mark.parametrize("kind", [Network, Attention])
def test_models_with_any_batch(kind: type[nn.Module]) -> None:
    model = kind().eval()
    run = bucketed(model)
    with torch.no_grad():
        for size in (3, 2, 4, 8, 5, 7, 6, 3, 1, 0):
            x = torch.randn(size, 2, 6, 6)
            if size > 1:
                torch._dynamo.mark_dynamic(x, 0)
            assert_equal(run(x), model(x))
    # Torch compiles 0 and 1 for themselves.
    assert len(compiled_graphs()) == len(BUCKETS) + 2


def test_a_language_model_with_any_batch() -> None:
    config = transformers.GPT2Config(
        vocab_size=50,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=16,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2Model(config).eval()
    run = torch.compile(model, backend="pjrt", options={"buckets": BUCKETS})
    with torch.no_grad():
        for size in (3, 8, 2, 5):
            words = torch.randint(0, 50, (size, 7))
            torch._dynamo.mark_dynamic(words, 0)
            found, expected = run(words)[0], model(words)[0]
            assert_same(found, expected)
            assert found.is_contiguous()
    assert len(compiled_graphs()) == len(BUCKETS)


def test_training_with_any_batch() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2))
    run = bucketed(model)
    for size in (3, 4, 2, 7, 5):
        x = torch.randn(size, 4)
        torch._dynamo.mark_dynamic(x, 0)
        gradients = []
        for candidate in (run, model):
            model.zero_grad()
            candidate(x).square().sum().backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        assert_same(*gradients)
    kinds = [graph.kind for graph in compiled_graphs()]
    assert kinds.count("forward") == len(BUCKETS)
    assert kinds.count("backward") == len(BUCKETS)
