"""Which operators keep the rows of a dimension apart, and what is said of those that mix them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.buckets import Padding
from pjrt_bridge.torch_interop.passes.padding.rows import (
    Dims,
    MixesRows,
    Rule,
    Use,
    independent_rows,
)
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.passes.padding.rows import (
    SIZE,
    STEPS,
    assert_padding_changes_nothing,
    chain,
    padded,
    refusals,
    symbolic,
)

N = SIZE
torch.manual_seed(0)
X = torch.randn(N, 4)
Y = torch.randn(N, 4)
W = torch.randn(4, 3)
CUBE = torch.randn(N, 2, 6)
IMAGE = torch.randn(N, 4, 8, 8)
HEADS = torch.randn(N, 2, 7, 8)
WORDS = torch.tensor([2, 0, 6, 1, 6])
TABLE = torch.randn(7, 3)
COLUMNS = torch.tensor([[0, 3], [1, 1], [2, 0], [3, 3], [1, 2]])

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


MIXING: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "sum": (lambda x: x.sum(0), (X,), "aten.sum.dim_IntList: it reduces over the dimension"),
    "sum of all": (lambda x: x.sum(), (X,), "it reduces over the dimension"),
    "argmax of all": (lambda x: x.argmax(), (X,), "it reduces over the dimension"),
    "variance": (lambda x: x.var(0), (X,), "it reduces over the dimension"),
    "softmax": (lambda x: x.softmax(0), (X,), "it works along the dimension"),
    "sort": (lambda x: x.sort(0), (X,), "it works along the dimension"),
    "cumsum": (lambda x: x.cumsum(0), (X,), "it works along the dimension"),
    "flip": (lambda x: x.flip(0), (X,), "it works along the dimension"),
    "roll": (lambda x: x.roll(1, 0), (X,), "the number may be another in the padding"),
    "cat": (lambda x, y: torch.cat([x, y]), (X, Y), "it works along the dimension"),
    "cat with others": (lambda x, w: torch.cat([x, w.t()]), (X, W), "it works along the dimension"),
    "slice": (lambda x: x[1:], (X,), "it takes rows out of the dimension"),
    "row": (lambda x: x[-1], (X,), "it takes rows out of the dimension"),
    "rows": (lambda x: x[:2], (X,), "it takes rows out of the dimension"),
    "sum of what is merged": (
        lambda x: x.reshape(-1).cumsum(0),
        (X,),
        "aten.cumsum.default: it works along the dimension",
    ),
    "a sum with what is merged otherwise": (
        lambda x: x.reshape(-1) + x.t().reshape(-1),
        (X,),
        "it combines the dimension with one that is merged otherwise",
    ),
    "a result that is merged": (
        lambda x: x.t().reshape(-1) * 2,
        (X,),
        "in a result it is merged with what is before it",
    ),
    "merged with itself": (
        lambda x: (x @ x.t()).reshape(-1),
        (X,),
        "it divides the dimension, or merges it with itself",
    ),
    "reshape to another place": (
        lambda x: x.reshape(4, -1),
        (X,),
        "it divides the dimension, or merges it with itself",
    ),
    "repeat": (lambda x: x.repeat(2, 1), (X,), "it repeats the dimension"),
    "border": (lambda x: F.pad(x, (0, 0, 1, -1)), (X,), "it adds rows to the dimension"),
    "mm": (lambda x, y: x.t() @ y, (X, Y), "it sums over the dimension"),
    "mv": (lambda x, y: y.t() @ x[:, 0], (X, Y), "it reduces over the dimension"),
    "batch_norm": (
        lambda x, w: F.batch_norm(x.t()[None], w[:, 0], w[:, 0].exp()),
        (torch.randn(4, N), torch.rand(N, 1)),
        "it has a weight for each row of the dimension",
    ),
    "layer_norm": (lambda x: F.layer_norm(x.t(), (x.shape[0],)), (X,), "as a number"),
    "convolution along it": (
        lambda x, w: F.conv1d(x, w, padding=1),
        (torch.randn(2, 3, N), torch.randn(4, 3, 3)),
        "it works along the dimension",
    ),
    "pooling along it": (
        lambda x: F.max_pool2d(x, 3, 1, 1),
        (torch.randn(2, 3, N, 8),),
        "it works along the dimension",
    ),
    "attention to it": (
        F.scaled_dot_product_attention,
        (torch.randn(2, 3, 7, 8), torch.randn(2, 3, N, 8), torch.randn(2, 3, N, 8)),
        "it sums over the dimension",
    ),
    "index into it": (lambda i, x: x[i - 7], (WORDS, X), "it looks up rows of the dimension"),
    "index of the row before": (
        lambda x: x[torch.arange(x.shape[0]) - 1],
        (X,),
        "it looks up rows of the dimension",
    ),
    "index of two rows": (
        lambda x: (x @ x.t())[torch.arange(x.shape[0]).expand(x.shape[0], x.shape[0])],
        (X,),
        "it looks up rows of the dimension",
    ),
    "index of what is counted": (
        lambda x, t: t[torch.arange(x.shape[0])],
        (X, TABLE),
        "indices that it computes may be out of range in the padding",
    ),
    "gather from it": (
        lambda i, x: x.gather(0, i),
        (COLUMNS, X),
        "it works along the dimension",
    ),
    "embedding of it": (F.embedding, (COLUMNS[:2], X), "it looks up rows of the dimension"),
    "computed indices": (
        lambda i, t: t[i - 7],
        (WORDS, TABLE),
        "indices that it computes may be out of range in the padding",
    ),
    "indices into nothing": (
        lambda i, t: t[i],
        (WORDS, torch.randn(0, 3)),
        "what it looks up in may be empty",
    ),
    "division of integers": (
        lambda i: 12 // (i + 1),
        (COLUMNS,),
        "it may divide by zero in the padding",
    ),
    "random numbers": (lambda x: torch.rand_like(x), (X,), "not known to keep the rows"),
    "the size as a number": (lambda x: x * x.shape[0], (X,), "it uses the size as a number"),
    "arange from the end": (
        lambda x: torch.arange(x.shape[0], 0, -1),
        (X,),
        "it uses the size as a number",
    ),
    "counted from elsewhere": (
        lambda x: torch.ops.prims.iota(
            x.shape[0], start=1, step=1, dtype=torch.int64, device="cpu", requires_grad=False
        ),
        (X,),
        "it counts otherwise than the rows",
    ),
    "arange that overflows": (
        lambda x: torch.arange(x.shape[0], dtype=torch.int8),
        (X,),
        "it may count further than the element type can",
    ),
    "a number computed from the size": (
        lambda x: (x + 1, x.shape[0] * 2),
        (X,),
        "a number computed from it is a result",
    ),
    "an argument that is written into": (
        lambda x: x.copy_(x + 1),
        (X.clone(),),
        "it is written into",
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_rows_is_not_padded_and_says_why(name: str) -> None:
    function, args, reason = MIXING[name]
    graph = symbolic(function, *args)
    (found,) = refusals(graph, args)
    assert reason in found
    assert Padding(graph, [64]).pad(list(args)) is None


def test_a_rule_that_torch_contradicts_is_not_believed() -> None:
    graph = symbolic(lambda x: x.t() + 1, X)
    source, moved = list(graph.graph.nodes)[:2]
    symbol = compat.expression(compat.promise(source).shape[0])
    use = Use(moved, symbol, {source: {0: (1, 1)}}, set())
    assert independent_rows(use, Rule(lambda _: {1: (1, 1)})).dims == [{1: (1, 1)}]
    wrong: list[Dims] = [
        {},
        {0: (1, 1)},
        {1: (1, 2)},
        {0: (1, 1), 1: (1, 1)},
        {1: (1, 1), 2: (1, 1)},
    ]
    for dims in wrong:
        with pytest.raises(MixesRows, match="its results have the size elsewhere"):
            independent_rows(use, Rule(lambda _, dims=dims: dims))


@settings(max_examples=40)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5))
def test_random_graphs_are_padded_where_all_of_their_steps_allow(steps: list[str]) -> None:
    function = chain(steps)
    graph = symbolic(function, X)
    if all(STEPS[step][0] for step in steps):
        assert_same(padded(graph, [X]), function(X))
    else:
        assert refusals(graph, [X])


def test_a_tensor_that_is_given_twice_is_copied_once() -> None:
    graph = symbolic(torch.add, X, Y)
    ready = Padding(graph, [64]).pad([X, X])
    assert ready is not None
    first, second = ready.arguments
    assert first is second
    assert ready.copied == 64 * 4 * 4


def test_what_fills_a_bucket_is_not_copied() -> None:
    graph = symbolic(torch.add, X, Y)
    full, strided = torch.randn(8, 4), torch.randn(4, 8).t()
    ready = Padding(graph, [8]).pad([full, strided])
    assert ready is not None
    assert ready.arguments[0] is full
    # All calls have the same strides, or they would not share a compilation.
    assert ready.arguments[1].stride() == (4, 1)
    assert ready.copied == 8 * 4 * 4


def test_sizes_beyond_the_buckets_and_below_zero_stay() -> None:
    graph = symbolic(torch.add, X, Y)
    padding = Padding(graph, [8, 16])
    for size, expected in ((0, 8), (8, 8), (9, 16), (16, 16)):
        ready = padding.pad([torch.zeros(size, 4)] * 2)
        assert ready is not None
        assert [tensor.shape for tensor in ready.arguments] == [(expected, 4)] * 2
    given = [torch.zeros(17, 4)] * 2
    assert padding.pad(given) is None
    assert len(given) == 2


def test_sizes_that_torch_took_for_equal_are_left_to_the_graph() -> None:
    graph = symbolic(torch.add, X, Y)
    assert Padding(graph, [8]).pad([torch.zeros(3, 4), torch.zeros(1, 4)]) is None
