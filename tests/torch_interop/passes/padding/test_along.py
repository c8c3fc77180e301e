"""Operators along the padded dimension give what they give without padding."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch_interop.passes.padding.row_values import (
    COLUMNS,
    CUBE,
    DRAW,
    KEY,
    PLACES,
    TABLE,
    WORDS,
    N,
    W,
    X,
    Y,
)
from tests.torch_interop.passes.padding.rows import (
    assert_padding_changes_nothing,
    with_gradients,
)

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
    "diagonals": (
        lambda x, y: (
            (x @ y.t()).diagonal() * 2,
            (x @ y.t()).diagonal(-1) * 2,
            torch.diagonal(x[:, None] * y, 1, 0, 2).sum(0),
            torch.diag(x[:, 0]) + torch.diag_embed(y.t()),
            (x @ y.t()).trace(),
            torch.diagonal_scatter(x @ y.t(), x[:, 0]),
            torch.diagonal_scatter(x @ y.t(), x[1:, 1], -1).sum(1),
        ),
        (X, Y),
    ),
    "sums of products": (
        lambda x, w: (
            torch.addbmm(w[:, :2], x.transpose(1, 2)[:, :4], x[:, :, :2]),
            torch.addbmm(w[0, 0], x.permute(1, 2, 0), x.transpose(0, 1)),
        ),
        (CUBE, W),
    ),
    "backwards": (lambda x: (x.flip(0), x.flip(0, 1)), (X,)),
    "around": (lambda x: (x.roll(1, 0), x.roll((-2, 1), (0, 1))), (X,)),
    "one behind another": (
        lambda x, y, w: (torch.cat([x, y]), torch.cat([x, w.t(), y]), torch.cat([w.t(), x])),
        (X, Y, W),
    ),
    "behind an empty vector": (
        lambda x, y: (torch.cat([x.new_zeros(0), x * 2]), torch.cat([x, x.new_zeros(0), y])),
        (X, Y),
    ),
    "one row behind": (lambda x, w: torch.cat([x, w.t()[:1]]), (X, W)),
    "a cache": (lambda x, w: torch.cat([x, w.t()[:1]]).softmax(0).sum(0), (X, W)),
    "rows": (lambda x: (x[1:], x[:2], x[:-1], x[-2:], x[1:-1], x[::2], x[1::2]), (X,)),
    "rows at a distance": (
        lambda x: (x[1:-1:2] * 1, x[:-1:3] * 1, x[-4::2] * 1, x[:4:2] * 1),
        (X,),
    ),
    "rows at a distance from a size on": (
        lambda x, t: (t[x.shape[0] - 4 : x.shape[0] + 1 : 2] * 1, t[: x.shape[0] : 2] * 1),
        (X, TABLE),
    ),
    "a table of any size": (
        with_gradients(lambda x, i: F.embedding(i[:2], x, padding_idx=1)),
        (X, COLUMNS),
    ),
    "one number added at positions": (
        lambda i, t: torch.index_put(t, (i,), torch.tensor(1.0), accumulate=True),
        (WORDS, TABLE),
    ),
    "counts in bins": (lambda x: torch.histc(x[:, 0], 4, -1.0, 1.5), (X,)),
    "a permutation": (lambda x: DRAW.randperm(KEY, x.shape[0]), (X,)),
    "positions by weights": (
        lambda x: (
            DRAW.multinomial(KEY, x[:, 0].exp(), 1),
            DRAW.multinomial(KEY, x[:, 0].exp(), 3),
            DRAW.multinomial(KEY, x[:, 0].exp(), 4, True),
            DRAW.multinomial(KEY, x[:, 1].exp(), x.shape[0], True),
        ),
        (X,),
    ),
    "positions in rows by weights": (
        lambda x: (
            DRAW.multinomial(KEY, x.exp(), 1),
            DRAW.multinomial(KEY, x.exp().half(), 2),
            DRAW.multinomial(KEY, x.exp(), 6, True),
            DRAW.multinomial(KEY, x.t().reshape(-1, 2).exp(), 1),
        ),
        (X,),
    ),
    "positions in rows of any length by weights": (
        lambda x, y: (
            DRAW.multinomial(KEY, x.t().exp(), 1),
            DRAW.multinomial(KEY, x.t().exp(), 3),
            DRAW.multinomial(KEY, (x @ y.t()).exp(), 2),
            DRAW.multinomial(KEY, x.t().exp(), 6, True),
        ),
        (X, Y),
    ),
    "created anew": (
        lambda x: torch.fill(torch.empty_strided((x.shape[0], 2), (2, 1)), 3) + x[:, :2],
        (X,),
    ),
    "a row": (lambda x: (x[-1], x[0], x[2], x[-2] + x[1]), (X,)),
    "rows up to a size": (lambda x, t: t[: x.shape[0]] * x[:, :3], (X, TABLE)),
    "pieces": (lambda x: x.split([2, x.shape[0] - 2]), (X,)),
    "repeated as a whole": (lambda x: (x.repeat(2, 1), x.repeat(2, 1).sum(0)), (X,)),
    "bordered": (lambda x: (F.pad(x, (0, 0, 1, 2)), F.pad(x, (0, 0, 1, -1), value=3.0)), (X,)),
    "a view of what is computed otherwise": (
        lambda x: (
            x.t().masked_scatter(x.t() > 0, x).view(-1),
            F.layer_norm(x.t(), (x.shape[0],)).view(2, 2, -1),
        ),
        (X,),
    ),
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
    "numbers counted in floating point": (
        lambda x: (
            x * torch.arange(x.shape[0] - 1, -1, -1.0)[:, None],
            x * torch.arange(0.0, 2.0 * x.shape[0], 2.0)[:, None],
        ),
        (X,),
    ),
    "conjugates": (
        lambda x: (torch.complex(x, x + 1).conj(), torch.complex(x, x + 1).conj().imag.exp()),
        (X,),
    ),
    "repeated borders": (
        with_gradients(
            lambda x, y: (
                F.pad(x.t()[None], (2, 1), mode="replicate"),
                F.pad((x @ y.t())[None], (1, 0, 2, 3), mode="replicate"),
                F.pad(x.t()[None, None, None], (-1, 2, 1, 1, 0, 2), mode="replicate"),
            )
        ),
        (X, Y),
    ),
    "positions that are not padded": (
        lambda x, i: (x[i % 4 - 1, i % 2], x.index_select(0, i * 1), x.gather(0, i[:, None] * 1)),
        (X, torch.tensor([3, 0, 4])),
    ),
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
    "put at positions": (
        lambda i, x, t: (
            torch.index_put(t, (i,), x[:, :3]),
            torch.index_put(t, (i,), torch.tensor(1.0)),
            torch.index_put(t, (i - 7, i % 3), x[:, 0]),
            torch.index_copy(t.t(), 1, i, x[:, :3].t()),
            torch.ops.aten.index_put(t.expand(2, 7, 3), [None, i], x[:, :3]),
        ),
        (PLACES, X, TABLE),
    ),
    "put at positions of it": (
        lambda x: (
            torch.index_put(x, (torch.arange(x.shape[0]).flip(0),), x * 2),
            torch.index_put(x, (-1 - torch.arange(x.shape[0]),), x * 2),
            torch.index_copy(x, 0, torch.arange(x.shape[0]).flip(0), x * 2),
        ),
        (X,),
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
    "numbers divided by the size": (
        lambda i, x: (i // i.shape[0], i % i.shape[0], (x * 9) // x.shape[0], i.fmod(x.shape[0])),
        (COLUMNS * 7, X),
    ),
    "both extrema": (lambda x: (x.aminmax(dim=0), x.aminmax(), x.aminmax(dim=1)), (X,)),
    "bilinear layers": (
        lambda x, y, w: (F.bilinear(x, y, w), F.bilinear(x[None], y[None], w).sum(1)),
        (X, torch.randn(N, 3), torch.randn(2, 4, 3)),
    ),
    "borders up to a multiple": (
        lambda x: (
            F.pad(x, (0, 0, 0, 8 - x.shape[0] % 8)).view(-1, 8, 4).mean(1),
            F.pad(x, (0, 0, -x.shape[0] % 4, 0), value=2.0).view(-1, 4, 4).cumsum(0),
        ),
        (X,),
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
    "positions in order": (
        lambda x, t: (
            torch.bucketize(x, t[0].sort().values),
            torch.searchsorted(x[:, 0].sort().values, t, right=True, out_int32=True),
            torch.searchsorted(x[:, 0].sort().values, torch.tensor([inf, -inf]), right=True),
            torch.searchsorted(x.sort(1).values, x),
        ),
        (X, TABLE),
    ),
    "repeated": (
        lambda i, t: t[torch.repeat_interleave(i.remainder(2), output_size=2)],
        (torch.tensor([0, 1, 0, 3, 4]), TABLE),
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
            torch.slice_scatter(x, x[::3] * 2, 0, step=3),
            torch.slice_scatter(x, x[1::2] * 2, 0, 1, step=2),
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


def test_gradients_of_attention_with_a_mask() -> None:
    def function(q: torch.Tensor, mask: torch.Tensor) -> Any:
        with torch.enable_grad():
            q = q.detach().requires_grad_()
            made = F.scaled_dot_product_attention(q, q + 1, q * 2, attn_mask=mask[None, None])
            return torch.autograd.grad(made.sin().sum(), q)

    assert_padding_changes_nothing(function, torch.randn(2, 3, N, 8), torch.randn(N, N))
