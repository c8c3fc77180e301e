"""Dimensions that were merged of others than an operator takes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.passes.padding.rows import (
    SIZE,
    assert_padding_changes_nothing,
    with_gradients,
)

Scores = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

N = SIZE
torch.manual_seed(0)
X = torch.randn(N, 4)
CUBE = torch.randn(N, 2, 6)
IMAGE = torch.randn(2, 3, N, N)

MERGED: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "a sum with what is merged otherwise": (lambda x: x.reshape(-1) + x.t().reshape(-1), X),
    "order": (lambda x: x.t().reshape(-1).sort(), X),
    "a triangle": (lambda x: x.permute(1, 0, 2).reshape(-1, 6).tril(), CUBE),
    "one behind another": (
        lambda x: torch.cat([x[:1, 0], x.permute(1, 0, 2).reshape(-1, 6), x[:, 1]]),
        CUBE,
    ),
    "positions among all": (lambda x: (x.t().argmax(), x.t().argmin(keepdim=True)), X),
    "moved around": (lambda x: x.t().reshape(-1).roll(3, 0).view(4, -1).softmax(1), X),
    "to another place": (lambda x: (x.reshape(4, -1), x.reshape(2, -1) * 2), X),
    "and back": (
        lambda x: x.permute(1, 0, 2).reshape(-1, 6)[3:].flip(0).reshape(-1).view(-1, 3),
        CUBE,
    ),
    "pairs": (
        lambda x: (x[:, None] + x[None]).reshape(-1, 4).cumsum(0).view(x.shape[0], -1, 4).sum(1),
        X,
    ),
    "pairs as other pairs": (
        lambda x: (x @ x.t()).reshape(-1)[1:].view(x.shape[0] - 1, x.shape[0] + 1)[:, :-1] + 0,
        X,
    ),
    "a token before patches": (
        lambda x: torch.cat([x[..., 0, :1], x.flatten(2)], 2).transpose(1, 2).softmax(1),
        IMAGE,
    ),
    "patches as an image": (
        lambda x: (x.flatten(2).cumsum(2)).view(2, 3, x.shape[2], x.shape[3]).sum(3),
        IMAGE,
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_elements_are_moved_to_where_they_are_in_the_call(name: str) -> None:
    assert_padding_changes_nothing(*MERGED[name])


IMAGES = torch.randn(2, N, 3, 4, 4)
ROWS = torch.randn(2, N, 3, 4)
OF_ROWS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "attention": (
        lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
        ROWS,
    ),
    "softmax": (lambda x: x.softmax(-1), ROWS),
    "layer norm": (lambda x: F.layer_norm(x, [4]), ROWS),
    "group norm": (lambda x: F.group_norm(x, 1), IMAGES),
    "convolution": (lambda x: F.conv2d(x, torch.ones(2, 3, 3, 3)), IMAGES),
    "means of windows": (lambda x: F.avg_pool2d(x, 2), IMAGES),
    "largest of windows": (lambda x: F.max_pool2d(x, 2), IMAGES),
    "means of parts": (lambda x: F.adaptive_avg_pool2d(x, 2), IMAGES),
    "largest of parts": (lambda x: F.adaptive_max_pool2d(x, 2), IMAGES),
    "distances": (lambda x: torch.cdist(x, x + 1), ROWS),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_a_gradient_that_is_merged_otherwise_than_what_was_saved(name: str) -> None:
    """Rows of a gradient of `cat` are one behind another; those saved are of two sizes."""
    function, x = OF_ROWS[name]

    def joined(x: torch.Tensor) -> torch.Tensor:
        made = function(x.flatten(0, 1))
        return torch.cat([made[:1], made[1:]])

    assert_padding_changes_nothing(with_gradients(joined), x)


@pytest.mark.usefixtures("fresh")
def test_training_with_attention_along_one_axis_of_images() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        y = x.permute(0, 2, 1, 3).reshape(batch * width, 1, height, channels)
        y = F.scaled_dot_product_attention(y, y, y)[:, 0]
        return y.view(batch, width, height, channels).permute(0, 2, 1, 3)

    run = torch.compile(function, backend="pjrt")
    for width in (11, 39, 57, 20, 33):
        gradients = []
        for one in (run, function):
            torch.manual_seed(width)
            x = torch.randn(2, 5, width, 4, requires_grad=True)
            made = one(x)
            made.sin().sum().backward()
            gradients.append([made.detach(), x.grad])
        assert_same(*gradients, rtol=1e-4, atol=1e-5)
    assert len(compiled_graphs()) <= 6
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())


def test_what_stands_in_padding_when_sizes_are_equal_by_chance() -> None:
    """A number of the graph and a size of an argument, both padded: rows are divided anew."""

    def scores_of(batch: int, heads: int, queries: int, keys: int, size: int) -> Scores:
        def scores(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, added: torch.Tensor
        ) -> torch.Tensor:
            q, k, v = (
                x.view(x.shape[0], x.shape[1], heads, size).permute(0, 2, 1, 3) for x in (q, k, v)
            )
            left, right = (x.reshape(batch * heads, -1, size) for x in (q, k))
            found = torch.bmm(left, right.transpose(1, 2)).view(batch, heads, queries, keys)
            return found + added[..., :1]

        return scores

    function = scores_of(1, 1, 5, 16, 4)
    given = [torch.randn(1, length, 4) for length in (5, 16, 16)]
    given.append(torch.randn(1, 1, 1, 16))
    torch._dynamo.reset()
    found = torch.compile(function, backend="pjrt", dynamic=True)(*given)
    torch.testing.assert_close(found, function(*given))


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_a_graph_of_views_alone_has_no_segment_that_padded_arguments_cross_to() -> None:
    def columns(p: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.argwhere(p).split(2, 1)

    run = torch.compile(columns, backend="pjrt", dynamic=True, options={"min_segment": 3})
    for ones in (3, 5, 2):
        p = torch.arange(8) < ones
        assert_same(run(p), columns(p))
