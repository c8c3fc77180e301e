"""Which operators keep the rows of a dimension apart, and what is said of those that mix them."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.buckets import GraphPadding
from pjrt_bridge.torch_interop.passes.padding.extents import MixesRows, PaddedDims
from pjrt_bridge.torch_interop.passes.padding.rows import (
    PaddingRule,
    TensorPadding,
    Use,
    apply_rule,
)
from tests.extent import examples
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.passes.padding.row_values import (
    COLUMNS,
    CUBE,
    HEADS,
    IMAGE,
    TABLE,
    WORDS,
    N,
    W,
    X,
    Y,
)
from tests.torch_interop.passes.padding.rows import (
    STEPS,
    assert_padding_changes_nothing,
    chain,
    padded,
    symbolic,
    with_gradients,
)

APART: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "elements": (lambda x, y: (x.exp() + y) * 2, (X, Y)),
    "elements, broadcast": (lambda x, w: torch.where(x > 0, x, w[0, 0]), (X, W)),
    "elements of a column": (lambda x: x[:, :1] * x, (X,)),
    "conversion": (lambda x: x.double(), (X,)),
    "masks": (lambda x: x.masked_fill(x > 0, 1.0).tril(), (X,)),
    "a division of integers by a number": (lambda i: i // 2 + i % 3, (COLUMNS,)),
    "softmax": (lambda x: x.softmax(-1), (X,)),
    "softmax in front": (lambda x: x.t().log_softmax(0), (X,)),
    "cumsum": (lambda x: x.cumsum(1), (X,)),
    "sort": (lambda x: x.sort(1), (X,)),
    "topk": (lambda x: x.topk(2, dim=-1), (X,)),
    "flip and roll": (lambda x: x.flip(1).roll(1, 1), (X,)),
    "fft": (lambda x: (torch.fft.rfft(x).abs(), torch.fft.fft(x, dim=1).real), (X,)),
    "sums": (lambda x: (x.sum((1, 2)), x.mean(-1, keepdim=True)), (CUBE,)),
    "extrema": (lambda x: (x.amax(1), x.max(2), x.argmin(1, keepdim=True)), (CUBE,)),
    "moments": (lambda x: (x.var(2), x.std(1), *torch.var_mean(x, 2)), (CUBE,)),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), (X,)),
    "truth": (lambda x: ((x > 0).any(1), (x > 0).all(-1)), (X,)),
    "median": (lambda x: x.median(1), (X,)),
    "transposed": (lambda x: (x + 1).t(), (X,)),
    "permuted": (lambda x: (x + 1).permute(2, 0, 1), (CUBE,)),
    "moved to the end": (lambda x: (x + 1).permute(1, 2, 0).contiguous(), (CUBE,)),
    "swapped": (lambda x: x.transpose(0, 2) * 2, (CUBE,)),
    "unsqueezed": (lambda x: x[:, None] - x[:, :, None], (X,)),
    "squeezed": (lambda x: x.sum(1, keepdim=True).squeeze(1), (X,)),
    "selected and sliced": (lambda x: x[:, 1, ::2] + x[:, -1, 3:], (CUBE,)),
    "sliced as a whole": (lambda x: x[0:] * 2, (X,)),
    "divided": (lambda x: (x.split(2, 2), x.unbind(1)), (CUBE,)),
    "unbound before the dimension": (
        lambda x: (x.transpose(0, 2).unbind(0), x.permute(1, 2, 0).unbind(-2)),
        (CUBE,),
    ),
    "stacked": (lambda x, y: (torch.stack([x, y], 1), torch.stack([y, x], -1)), (X, X)),
    "concatenated": (lambda x, y: torch.cat([x, y], 1), (X, Y)),
    "expanded": (lambda x: x.sum(1)[:, None, None].expand(-1, 3, 2) * 1, (X,)),
    "expanded to the size": (lambda x, w: w[:1].expand(x.shape[0], 3), (X, W)),
    "repeated": (lambda x: x.repeat(2, 1, 3), (X,)),
    "bordered": (lambda x: F.pad(x, (1, 2)), (X,)),
    "viewed": (lambda x: x.reshape(-1, 12), (CUBE,)),
    "viewed in the middle": (lambda x: x.transpose(0, 1).reshape(1, 2, -1, 2, 3), (CUBE,)),
    "merged": (lambda x: (x + 1).reshape(-1), (CUBE,)),
    "merged and divided": (
        lambda x, w: (x.transpose(0, 1).reshape(-1, 6)[:, :4] @ w).view(2, -1, 3).sum(0),
        (CUBE, W),
    ),
    "a layer on merged rows": (
        lambda x, w: F.linear(x, w.new_ones(5, 6), w.new_ones(5)),
        (CUBE, W),
    ),
    "words of many texts": (
        lambda i, t: F.layer_norm(F.embedding(i.reshape(-1), t), (3,)).view(-1, 2, 3),
        (COLUMNS, TABLE),
    ),
    "as complex": (lambda x: torch.view_as_complex(x.view(-1, 2, 2)) * 1j, (X,)),
    "mm": (lambda x, w: x @ w, (X, W)),
    "mm, transposed": (lambda x, w: w.t() @ x.t(), (X, W)),
    "mm, outer": (lambda x, y: x @ y.t(), (X, Y)),
    "addmm": (lambda x, w: F.linear(x, w.t(), w[0]), (X, W)),
    "bmm": (lambda x: x @ x.transpose(1, 2), (CUBE,)),
    "mv": (lambda x, w: x @ w[:, 0], (X, W)),
    "embedding": (F.embedding, (WORDS, TABLE)),
    "index": (lambda i, t: t[i], (WORDS, TABLE)),
    "index of elements": (lambda i, t: t[i, 1], (WORDS, TABLE)),
    "index by two": (lambda i, x: x[:, i[:1], 2:][:, :, None], (torch.tensor([1]), CUBE)),
    "index with a gap": (lambda i, t: t[i[:, None], :, i[:, None]], (WORDS, torch.randn(7, 2, 7))),
    "index of own rows": (
        lambda x: x[torch.arange(x.shape[0])[:, None, None], :, torch.arange(6)[:, None]],
        (CUBE,),
    ),
    "indices that are the same for all rows": (
        lambda x, i, t: F.embedding(i[:1].expand(x.shape[0], 2), t) + x[:, None, :3],
        (X, COLUMNS[:2], TABLE),
    ),
    "indices that are created": (
        lambda x, t: F.embedding(x.new_ones(x.shape[0], dtype=torch.int64), t),
        (X, TABLE),
    ),
    "index_select": (lambda i, t: t.index_select(0, i), (WORDS, TABLE)),
    "written where a mask is true": (
        lambda x, c: (
            torch.index_put(x, (x > 0,), torch.tensor(2.0)),
            torch.index_put(c, (c[:, :, 0] > 0,), torch.tensor(2.0)),
            torch.ops.aten.index_put(c, [None, c[0] > 0], torch.tensor(2.0)),
        ),
        (X, CUBE),
    ),
    "gather": (lambda x, i: x.gather(1, i), (X, COLUMNS)),
    "scatter": (lambda x, i: x.scatter(1, i, 1.0).scatter_add(1, i, x), (X, COLUMNS)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w[:, 0], w[:, 1]), (X, W)),
    "group_norm": (lambda x: F.group_norm(x, 2), (IMAGE,)),
    "batch_norm": (lambda x, w: F.batch_norm(x, w[:, 0], w[:, 1].exp()), (X, W)),
    "convolution": (lambda x, w: F.conv2d(x, w), (IMAGE, torch.randn(3, 4, 3, 3))),
    "pooling": (lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3)), (IMAGE,)),
    "adaptive pooling": (lambda x: F.adaptive_avg_pool2d(x, 3), (IMAGE,)),
    "attention": (F.scaled_dot_product_attention, (HEADS, HEADS + 1, HEADS * 2)),
    "attention of queries": (
        F.scaled_dot_product_attention,
        (torch.randn(2, 3, N, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)),
    ),
    "created": (lambda x: torch.ones(x.shape[0], 2) * torch.zeros_like(x)[:, :2], (X,)),
    "counted": (lambda x: torch.arange(x.shape[0])[:, None] * x, (X,)),
    "identity": (lambda x: torch.eye(x.shape[0]) + 1, (X,)),
    "causal mask": (lambda x: torch.ones(x.shape[0], x.shape[0]).tril(), (X,)),
}


@pytest.mark.parametrize("name", APART)
def test_garbage_in_the_padding_reaches_no_result(name: str) -> None:
    function, args = APART[name]
    assert_padding_changes_nothing(function, *args)


def test_gradients() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> Any:
        table = torch.ones(7, 3)
        with torch.enable_grad():
            given = [item.detach().requires_grad_() for item in (x, w, table)]
            x, w, table = given
            hidden = F.layer_norm(x @ w + F.embedding(i, table), (3,), w[0], w[1])
            image = hidden.t()[None]
            image = F.conv1d(image, w[None, :3, :3].expand(3, 3, 3), padding=1)
            image = F.batch_norm(image, None, None, w[2], w[3], training=True)
            heads = image[:, None].transpose(2, 3).expand(2, 2, -1, -1)
            made = F.scaled_dot_product_attention(heads, heads * 2, heads - 1)
            loss = made.cumsum(2).log_softmax(2).square().mean() + hidden.softmax(0).std()
            return torch.autograd.grad(loss, given)

    assert_padding_changes_nothing(function, X, torch.randn(4, 3), WORDS)


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, inf])
def test_gradients_of_distances(order: float) -> None:
    one = with_gradients(lambda x, y: torch.cdist(x, y, order))
    several = with_gradients(lambda x, y: torch.cdist(x[None], y[None].expand(2, -1, -1), order))
    for other in (Y, torch.randn(3, 4)):
        assert_padding_changes_nothing(one, X, other)
        assert_padding_changes_nothing(several, X, other)


def test_gradients_of_bilinear_layers() -> None:
    args = X, torch.randn(N, 3), torch.randn(2, 4, 3), torch.randn(2)
    assert_padding_changes_nothing(with_gradients(F.bilinear), *args)


def test_gradients_of_group_norm() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.enable_grad():
            given = [item.detach().requires_grad_() for item in (x, w)]
            made = F.group_norm(given[0], 2, given[1][0], given[1][1])
            return torch.autograd.grad((made.tanh() * made).sum(), given)

    for shape in ((2, 4, N, 3), (2, 4, N, N), (N, 4, 3, 3)):
        assert_padding_changes_nothing(function, torch.randn(shape), torch.randn(2, 4))


def test_gradients_of_pooling() -> None:
    def function(x: torch.Tensor) -> Any:
        with torch.enable_grad():
            given = x.detach().requires_grad_()
            made = F.max_pool2d(given * given, 3, 2, 1).tanh() * 3
            made = F.avg_pool2d(made, 2, 1).square().sum() + F.max_pool2d(given, 2, 1).sum()
            return torch.autograd.grad(made, given)

    for shape in ((2, 3, N, N), (2, 3, N, 7), (2, 3, 7, N), (N, 3, 7, 7)):
        assert_padding_changes_nothing(function, torch.randn(shape))


def test_no_rows_of_what_has_no_extreme_are_left_to_the_graph() -> None:
    graph = symbolic(lambda x: x.amax(0), X)
    assert GraphPadding(graph, [8]).pad([torch.zeros(0, 4)]) is None
    assert GraphPadding(graph, [8]).pad([torch.zeros(1, 4)]) is not None


def test_sizes_that_have_to_be_equal_are_compared() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    q, k = torch.randn(2, 3, 7, 8), torch.randn(2, 3, N, 8)
    assert_padding_changes_nothing(function, q, k, k + 1)


def test_a_rule_that_torch_contradicts_is_not_believed() -> None:
    graph = symbolic(lambda x: x.t() + 1, X)
    source, moved = list(graph.graph.nodes)[:2]
    size = compat.expression(compat.promise(source).shape[0])
    use = Use(moved, {size}, {source: TensorPadding({0: (size,)})})
    assert apply_rule(use, PaddingRule(lambda _: {1: (size,)})) == [TensorPadding({1: (size,)})]
    wrong: list[PaddedDims] = [
        {},
        {0: (size,)},
        {1: (2, size)},
        {0: (size,), 1: (size,)},
        {1: (size,), 2: (size,)},
    ]
    for dims in wrong:
        with pytest.raises(MixesRows, match="its results have the size elsewhere"):
            apply_rule(use, PaddingRule(lambda _, dims=dims: dims))


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5))
def test_padding_changes_nothing_in_random_graphs(steps: list[str]) -> None:
    function = chain(steps)
    graph = symbolic(function, X)
    assert_same(padded(graph, [X]), function(X))


def test_a_tensor_that_is_given_twice_is_copied_once() -> None:
    graph = symbolic(torch.add, X, Y)
    ready = GraphPadding(graph, [64]).pad([X, X])
    assert ready is not None
    first, second = ready.arguments
    assert first is second
    assert ready.copied == 64 * 4 * 4


def test_what_fills_a_bucket_is_not_copied() -> None:
    graph = symbolic(torch.add, X, Y)
    full, strided = torch.randn(8, 4), torch.randn(4, 8).t()
    ready = GraphPadding(graph, [8]).pad([full, strided])
    assert ready is not None
    assert ready.arguments[0] is full
    # All calls have the same strides, or they would not share a compilation.
    assert ready.arguments[1].stride() == (4, 1)
    assert ready.copied == 8 * 4 * 4


def test_sizes_beyond_the_buckets_and_below_zero_stay() -> None:
    graph = symbolic(torch.add, X, Y)
    padding = GraphPadding(graph, [8, 16])
    for size, expected in ((0, 8), (8, 8), (9, 16), (16, 16)):
        ready = padding.pad([torch.zeros(size, 4)] * 2)
        assert ready is not None
        assert [tensor.shape for tensor in ready.arguments] == [(expected, 4)] * 2
    given = [torch.zeros(17, 4)] * 2
    assert padding.pad(given) is None
    assert len(given) == 2


def test_sizes_that_torch_took_for_equal_are_left_to_the_graph() -> None:
    graph = symbolic(torch.add, X, Y)
    assert GraphPadding(graph, [8]).pad([torch.zeros(3, 4), torch.zeros(1, 4)]) is None
