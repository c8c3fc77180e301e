"""Which operators keep the rows of a dimension apart, and what is said of those that mix them."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.buckets import Padding
from pjrt_bridge.torch_interop.passes.padding.extents import Dims, MixesRows
from pjrt_bridge.torch_interop.passes.padding.rows import Rows, Rule, Use, apply_rule
from pjrt_bridge.torch_interop.randomness.operators import NAMESPACE
from tests.extent import examples
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.passes.padding.rows import (
    SIZE,
    STEPS,
    assert_padding_changes_nothing,
    chain,
    padded,
    refusals,
    symbolic,
    with_gradients,
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
KEY = torch.tensor(2**40 + 7)
DRAW = getattr(torch.ops, NAMESPACE)
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


ALONG: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "sums": (lambda x: (x.sum(0), x.sum(), x.nansum(0), x.prod(0), x.count_nonzero(0)), (X,)),
    "sums of integers": (lambda i: (i.sum(0), i.prod(), i.amax(0), i.amin(0, True)), (COLUMNS,)),
    "truth": (lambda x: ((x > 0).any(0), (x > -9).all(), x.any(), x.all(0)), (X,)),
    "extrema": (lambda x: (x.amax(0), x.amin((0, 1)), x.max(), x.min(), x.logsumexp(0)), (X,)),
    "positions of extrema": (
        lambda x: (x.max(0), x.min(0, keepdim=True), x.argmax(0), x.argmin(), x[:, 0].argmax()),
        (X,),
    ),
    "means": (lambda x: (x.mean(0), x.mean(), x.mean((0, 2), True), x.double().mean(1)), (CUBE,)),
    "means in half precision": (lambda x: x.half().mean(0), (X,)),
    "moments": (
        lambda x: (x.var(0), x.std(), x.var((0, 1), correction=0), *torch.var_mean(x, 0)),
        (CUBE,),
    ),
    "norms": (
        lambda x: [torch.linalg.vector_norm(x, o, 0) for o in (0, 1, 2, 3.5, inf, -inf, -1)],
        (X,),
    ),
    "softmax": (lambda x: (x.softmax(0), x.log_softmax(0), x.half().softmax(0)), (X,)),
    "scans": (
        lambda x: (x.cumsum(0), x.cumprod(0), x.cummax(0), x.cummin(0), x.logcumsumexp(0)),
        (X,),
    ),
    "scans of what is merged": (lambda x: x.t().reshape(-1).cumsum(0), (X,)),
    "orders": (lambda x: (x.sort(0), x.sort(0, descending=True), x.argsort(0)), (X,)),
    "orders of integers": (
        lambda i: (i.sort(0), i.sort(0, True), i.sort(dim=0, stable=True)),
        (COLUMNS,),
    ),
    "orders of extreme numbers": (
        lambda x: (x.sort(0), x.sort(0, descending=True)),
        (torch.tensor([inf, nan, -inf, nan, 0.0]),),
    ),
    "the largest": (lambda x: (x.topk(2, 0), x.topk(3, 0, largest=False)), (X,)),
    "the largest of what is all the same": (
        lambda x: (x.topk(5, 0).indices.sort().values, x.topk(5, 0, False).indices.sort().values),
        (torch.tensor([-inf, -inf, -inf, -inf, -inf]),),
    ),
    "the smallest of what is all the same": (
        lambda x: x.topk(5, 0, largest=False).indices.sort().values,
        (torch.tensor([nan, nan, nan, nan, nan]),),
    ),
    "backwards": (lambda x: (x.flip(0), x.flip(0, 1)), (X,)),
    "around": (lambda x: (x.roll(1, 0), x.roll((-2, 1), (0, 1))), (X,)),
    "one behind another": (
        lambda x, y, w: (torch.cat([x, y]), torch.cat([x, w.t(), y]), torch.cat([w.t(), x])),
        (X, Y, W),
    ),
    "one row behind": (lambda x, w: torch.cat([x, w.t()[:1]]), (X, W)),
    "a cache": (lambda x, w: torch.cat([x, w.t()[:1]]).softmax(0).sum(0), (X, W)),
    "rows": (lambda x: (x[1:], x[:2], x[:-1], x[-2:], x[1:-1], x[::2], x[1::2]), (X,)),
    "a row": (lambda x: (x[-1], x[0], x[2], x[-2] + x[1]), (X,)),
    "rows up to a size": (lambda x, t: t[: x.shape[0]] * x[:, :3], (X, TABLE)),
    "pieces": (lambda x: x.split([2, x.shape[0] - 2]), (X,)),
    "repeated as a whole": (lambda x: (x.repeat(2, 1), x.repeat(2, 1).sum(0)), (X,)),
    "bordered": (lambda x: (F.pad(x, (0, 0, 1, 2)), F.pad(x, (0, 0, 1, -1), value=3.0)), (X,)),
    "merged": (lambda x: x.t().reshape(-1) * 2, (X,)),
    "mm": (lambda x, y: (x.t() @ y, y.t() @ x[:, 0], x[:, 0] @ y[:, 1]), (X, Y)),
    "addmm over it": (lambda x, y: torch.addmm(x[0, 0], x.t(), y), (X, Y)),
    "bmm over it": (lambda x: x.permute(1, 2, 0) @ x.permute(1, 0, 2), (CUBE,)),
    "gram": (lambda x: (x @ x.t()).softmax(-1) @ x, (X,)),
    "convolution along it": (
        lambda x, w: (F.conv1d(x, w, padding=1), F.conv1d(x, w, stride=2, padding=1)),
        (torch.randn(2, 3, N), torch.randn(4, 3, 3)),
    ),
    "convolutions of images of any height and width": (
        lambda x, w: F.conv2d(F.conv2d(x, w, padding=1).exp(), w, padding=1),
        (torch.randn(2, 3, N, N), torch.randn(3, 3, 3, 3)),
    ),
    "a product with itself": (lambda x: (lambda y: y @ y)(x.exp()), (torch.randn(N, N),)),
    "transposed convolution along it": (
        lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1),
        (torch.randn(2, 4, N), torch.randn(4, 3, 3)),
    ),
    "attention to it": (
        F.scaled_dot_product_attention,
        (torch.randn(2, 3, 7, 8), torch.randn(2, 3, N, 8), torch.randn(2, 3, N, 8)),
    ),
    "attention within it": (
        lambda q: F.scaled_dot_product_attention(q, q + 1, q * 2, is_causal=True),
        (torch.randn(2, 3, N, 8),),
    ),
    "attention with a mask": (
        lambda q, m: F.scaled_dot_product_attention(q, q + 1, q * 2, attn_mask=m[None, None]),
        (torch.randn(2, 3, N, 8), torch.randn(N, N)),
    ),
    "attention with a mask of truth": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m[None, None] > -1),
        (torch.randn(2, 3, N, 8), torch.randn(N, N)),
    ),
    "batch norm": (
        lambda x, w: F.batch_norm(x, w[:, 0], w[:, 0].exp()),
        (torch.randn(2, 4, N), torch.rand(4, 1)),
    ),
    "batch norm of channels": (
        lambda x, w: (
            F.batch_norm(x.t()[None].contiguous(), w[:, 0], w[:, 0].exp(), w[:, 1]),
            F.batch_norm(x.t()[None].contiguous(), None, None, w[:, 0], w[:, 1], training=True),
        ),
        (torch.randn(4, N), torch.rand(N, 2)),
    ),
    "index into it": (lambda i, x: (x[i - 3], x[i - 3, 1], x[:, 0][i - 4]), (WORDS % 4, X)),
    "index of the row before": (lambda x: x[torch.arange(x.shape[0]) - 1], (X,)),
    "index of own rows": (lambda x: x[torch.arange(x.shape[0])], (X,)),
    "index of what is counted": (lambda x, t: t[torch.arange(x.shape[0])], (X, TABLE)),
    "gather from it": (lambda i, x: x.gather(0, i), (COLUMNS[:, :2], X)),
    "computed indices": (lambda i, t: t[i - 7], (WORDS, TABLE)),
    "division of integers": (lambda i: (12 // (i + 1), 7 % (i + 1)), (COLUMNS,)),
    "the size as a number": (
        lambda x: (x * x.shape[0], x + (x.shape[0] - 1), x / x.shape[0], x > x.shape[0]),
        (X,),
    ),
    "full of the size": (lambda x: x + torch.full((4,), x.shape[0]), (X,)),
    "counted": (
        lambda x: (
            torch.arange(x.shape[0], 2 * x.shape[0]),
            torch.arange(1, x.shape[0] + 1),
            torch.arange(x.shape[0], 0, -1),
            torch.arange(x.shape[0], dtype=torch.float32),
        ),
        (X,),
    ),
    "added at positions": (
        lambda i, x, t: torch.index_put(t, (i,), x[:, :3], accumulate=True),
        (WORDS, X, TABLE),
    ),
    "added at positions of it": (
        lambda i, x: (
            torch.index_put(x, (i % 4 - 4,), x * 2, accumulate=True),
            torch.ops.aten.index_put(x, [None, i[:2] % 4], x[:, :2], True),
            torch.index_put(x, (torch.tensor([0, -1]),), x[:2]),
        ),
        (WORDS, X),
    ),
    "one row for all": (
        lambda x: (x[:, :1].expand(-1, x.shape[0]).sum(1), x[:1, :1].expand(x.shape[0], 2).sum(0)),
        (X,),
    ),
    "scattered": (lambda i, x, w: w.scatter_add(0, i % 4, x[:, :2]), (COLUMNS, X, W)),
    "a computed number": (lambda x: (x + 1, x.shape[0] * 2), (X,)),
    "random numbers": (
        lambda x: (
            DRAW.rand(KEY, [x.shape[0], 4]),
            DRAW.randn(KEY, [2, x.shape[0], 3]),
            DRAW.randint(KEY, 10, [2, 2, x.shape[0]]),
            DRAW.rand_like(KEY, x.t()),
            DRAW.bernoulli.p(KEY, x.t(), 0.3),
            DRAW.exponential(KEY, x.unsqueeze(0)),
            DRAW.uniform(KEY, x.t().reshape(-1), 2.0, 3.0),
            DRAW.randn_like(KEY, x.unsqueeze(1) + x.unsqueeze(2)),
        ),
        (X,),
    ),
    "dropout": (
        lambda x: (
            DRAW.native_dropout(KEY, x.transpose(0, 1), 0.3, True),
            DRAW.native_dropout(KEY, x.transpose(0, 1).half(), 0.3, None),
            DRAW.native_dropout(KEY, x.transpose(0, 1).reshape(-1), 1.0, True),
            DRAW.native_dropout(KEY, x.transpose(0, 1), 0.3, False),
            DRAW.native_dropout(KEY, x, 0.3, True),
        ),
        (CUBE,),
    ),
    "group norm": (
        lambda x, w: (F.group_norm(x, 2, w[0], w[1]), F.group_norm(x.half(), 4)),
        (torch.randn(2, 4, N, 3), torch.randn(2, 4)),
    ),
    "group norm of images and a batch": (
        lambda x, w: F.group_norm(x, 2, w[0]),
        (torch.randn(N, 4, N, N), torch.randn(2, 4)),
    ),
    "pooling": (
        lambda x: (
            F.max_pool2d(x, 3, 1, 1, return_indices=True),
            F.max_pool2d(-x.abs(), 2, return_indices=True),
            F.avg_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, 2, count_include_pad=False),
        ),
        (torch.randn(2, 3, N, N),),
    ),
    "adaptive pooling": (
        lambda x: (
            F.adaptive_avg_pool2d(x, 3),
            F.adaptive_avg_pool2d(x.half(), (None, 2)),
            F.adaptive_avg_pool2d(x, 7),
            F.adaptive_max_pool2d(x, (2, 3), return_indices=True),
        ),
        (torch.randn(2, 3, N, N),),
    ),
    "adaptive pooling of series and volumes": (
        lambda x: (
            F.adaptive_avg_pool1d(x[:, 0], 2),
            F.adaptive_max_pool1d(x[:, 0], 2),
            F.adaptive_avg_pool3d(x[:, :, :, None], (3, 1, 2)),
        ),
        (torch.randn(2, 3, 4, N),),
    ),
    "adaptive pooling of equals": (
        lambda x: F.adaptive_max_pool2d(x.round(), 2, return_indices=True),
        (torch.randn(2, 3, N, N),),
    ),
    "limits by the size": (
        lambda x, i: (
            x.clamp(0, x.shape[0] - 1),
            x.clamp(-x.shape[0], 2.5),
            i.clamp(max=x.shape[0] - 3),
            i.clamp_min(x.shape[0] - 4),
            i.clamp_max(x.shape[0] - 4),
        ),
        (X, COLUMNS),
    ),
    "windows": (lambda x: (x.unfold(0, 3, 1), x.t().unfold(1, 2, 2).mean(-1)), (X,)),
    "ranks": (
        lambda x: (x.kthvalue(2, 0), x.kthvalue(4, 0, True), x.median(0), x[:, 1].median(0)),
        (X,),
    ),
    "medians": (
        lambda x: (x.nanmedian(0).values, x.nanmedian(), x.median(), x.t().nanmedian()),
        (torch.where(X > 0.5, nan, X),),
    ),
    "medians of NaN": (
        lambda x: (x.nanmedian(0).values, x.nanmedian(), x.median()),
        (torch.full((N, 3), nan),),
    ),
    "medians of integers": (
        lambda i: (i.nanmedian(0).values, i.nanmedian(), i.median()),
        (COLUMNS,),
    ),
    "numbers divided by the size": (
        lambda i, x: (i // i.shape[0], i % i.shape[0], (x * 9) // x.shape[0], i.fmod(x.shape[0])),
        (COLUMNS * 7, X),
    ),
    "both extrema": (lambda x: (x.aminmax(dim=0), x.aminmax(), x.aminmax(dim=1)), (X,)),
    "bilinear layers": (
        lambda x, y, w: (F.bilinear(x, y, w), F.bilinear(x[None], y[None], w).sum(1)),
        (X, torch.randn(N, 3), torch.randn(2, 4, 3)),
    ),
    "borders of the size": (
        lambda x: (
            F.pad(x, (0, 0, x.shape[0], 1)),
            F.pad(x, (x.shape[0], 0, 0, x.shape[0] - 2), value=2.0),
            F.pad(x[:4], (0, x.shape[0] - 3)),
            F.pad(x, (0, 0, -2, 1)),
            F.pad(x, (0, 0, 3 - x.shape[0], x.shape[0])),
        ),
        (X,),
    ),
    "ranks of integers": (lambda i: i.median(0, True).values, (COLUMNS,)),
    "medians with NaN": (
        lambda x: (x.median(0).values, x.median(1).values, x.kthvalue(5, 0).values),
        (X.masked_fill(X > 1, nan),),
    ),
    "positions in order": (
        lambda x, t: (
            torch.bucketize(x, t[0].sort().values),
            torch.searchsorted(x[:, 0].sort().values, t, right=True, out_int32=True),
            torch.searchsorted(x[:, 0].sort().values, torch.tensor([inf, -inf]), right=True),
            torch.searchsorted(x.sort(1).values, x),
        ),
        (X, TABLE),
    ),
    "written at positions": (
        lambda i, x, t: (
            t.scatter(0, i[:, None].expand(-1, 3), x[:, :3] * 0),
            t.scatter(0, i[:, None], 3.0),
            *(
                t.scatter_reduce(0, i[:, None].expand(-1, 3), x[:, :3], how, include_self=kept)
                for how in ("sum", "prod", "mean", "amax", "amin")
                for kept in (True, False)
            ),
            torch.zeros_like(x).scatter_reduce(0, (i[:, None] % 4).expand(-1, 4), x, "amax"),
        ),
        (WORDS, X, TABLE),
    ),
    "instance norm": (
        lambda x, w: (F.instance_norm(x), F.instance_norm(x[:4].transpose(0, 1), None, None, w)),
        (torch.randn(N, 4, 6), torch.rand(4)),
    ),
    "counted in steps of the size": (
        lambda x: torch.arange(0, 3 * x.shape[0], x.shape[0]) * 2,
        (X,),
    ),
    "pooling of a series": (
        lambda x: (F.avg_pool1d(x, 2), F.max_pool2d(x[:, :, None], (1, 3), (1, 2))),
        (torch.randn(2, 3, N),),
    ),
    "rows added at positions": (
        lambda i, x, t: (
            t.index_add(0, i, x[:, :3], alpha=2),
            torch.zeros_like(x).index_add(0, i % 4, x),
            x.index_add(1, i[:2], x[:, :2]),
        ),
        (WORDS, X, TABLE),
    ),
    "messages between nodes": (
        lambda x, i: torch.zeros_like(x).scatter_add(0, (i[:, :1] % 4).expand(-1, 4), x[i[:, 1]]),
        (X, COLUMNS),
    ),
    "written into rows": (lambda x, w: x.scatter(0, x[:1].long() * 0 + 2, 5.0), (X, W)),
    "distances": (
        lambda x, w: (
            torch.cdist(x, x * 2),
            torch.cdist(x, w.t(), p=1.0),
            torch.cdist(x[None].expand(2, -1, -1), w.t()[None]),
            torch.cdist(x[:, None], w.t()[None]),
        ),
        (X, W),
    ),
    "rows replaced": (
        lambda x, t: (
            torch.slice_scatter(x, x[1:] * 2, 0, 1),
            torch.slice_scatter(x, x[:-2] * 2, 0, 0, -2),
            torch.slice_scatter(x, x[:, 1:3] * 2, 1, 1, 3),
            torch.slice_scatter(x, t[:2, :1].expand(2, 4), 0, -2),
            torch.slice_scatter(x.new_zeros(4, 9), x.t(), 1, 2, 2 + x.shape[0]),
        ),
        (X, TABLE),
    ),
    "a row replaced": (
        lambda x, w: (
            torch.select_scatter(x, w[:, 0], 0, 2),
            torch.select_scatter(x, w[:, 0], 0, -1).sum(0),
            torch.select_scatter(x, x[:, 1] * 2, 1, -1),
            torch.select_scatter(w.t() * 1, w[:, 1], 0, x.shape[0] - 4),
        ),
        (X, W),
    ),
    "losses": (
        lambda x, i: (F.cross_entropy(x, i % 4), F.nll_loss(x, i % 4, reduction="sum")),
        (X, WORDS),
    ),
}


@pytest.mark.parametrize("name", ALONG)
def test_padding_changes_nothing_along_the_dimension(name: str) -> None:
    function, args = ALONG[name]
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


MIXING: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "mode": (lambda x: x.mode(0), (X,), "it reduces over the dimension in a way that is not"),
    "layer_norm": (lambda x: F.layer_norm(x.t(), (x.shape[0],)), (X,), "it normalizes over"),
    "pooling behind the end": (
        lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
        (torch.randn(2, 3, N, 8),),
        "its windows reach behind the dimension",
    ),
    "means of what is inside": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        (torch.randn(2, 3, N, 8),),
        "it divides by how much of a window is inside",
    ),
    "embedding of it": (F.embedding, (COLUMNS[:2], X), "it looks up rows of the dimension"),
    "written at positions": (
        lambda i, x, t: torch.index_put(t, (i,), x[:, :3]),
        (WORDS, X, TABLE),
        "it writes at positions in the padding",
    ),
    "one number written at positions": (
        lambda i, t: torch.index_put(t, (i,), torch.tensor(1.0), accumulate=True),
        (WORDS, TABLE),
        "it writes one element at positions in the padding",
    ),
    "a permutation": (
        lambda x: DRAW.randperm(KEY, x.shape[0]),
        (X,),
        "it is not known what it does with",
    ),
    "a random number of what each element says": (
        lambda x: DRAW.bernoulli.Tensor(KEY, x.t(), x.t().sigmoid()),
        (X,),
        "it draws a number for each element",
    ),
    "arange that overflows": (
        lambda x: torch.arange(x.shape[0], dtype=torch.int8),
        (X,),
        "it may count further than the element type can",
    ),
    "an argument that is written into": (
        lambda x: x.copy_(x + 1),
        (X.clone(),),
        "it is written into",
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_cannot_be_padded_is_not_and_says_why(name: str) -> None:
    function, args, reason = MIXING[name]
    graph = symbolic(function, *args)
    (found,) = refusals(graph, args)
    assert reason in found
    assert Padding(graph, [64]).pad(list(args)) is None


def test_no_rows_of_what_has_no_extreme_are_left_to_the_graph() -> None:
    graph = symbolic(lambda x: x.amax(0), X)
    assert Padding(graph, [8]).pad([torch.zeros(0, 4)]) is None
    assert Padding(graph, [8]).pad([torch.zeros(1, 4)]) is not None


def test_sizes_that_have_to_be_equal_are_compared() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    q, k = torch.randn(2, 3, 7, 8), torch.randn(2, 3, N, 8)
    assert_padding_changes_nothing(function, q, k, k + 1)


def test_a_rule_that_torch_contradicts_is_not_believed() -> None:
    graph = symbolic(lambda x: x.t() + 1, X)
    source, moved = list(graph.graph.nodes)[:2]
    size = compat.expression(compat.promise(source).shape[0])
    use = Use(moved, {size}, {source: Rows({0: (size,)})})
    assert apply_rule(use, Rule(lambda _: {1: (size,)})) == [Rows({1: (size,)})]
    wrong: list[Dims] = [
        {},
        {0: (size,)},
        {1: (2, size)},
        {0: (size,), 1: (size,)},
        {1: (size,), 2: (size,)},
    ]
    for dims in wrong:
        with pytest.raises(MixesRows, match="its results have the size elsewhere"):
            apply_rule(use, Rule(lambda _, dims=dims: dims))


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5))
def test_padding_changes_nothing_in_random_graphs(steps: list[str]) -> None:
    function = chain(steps)
    graph = symbolic(function, X)
    assert_same(padded(graph, [X]), function(X))


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
