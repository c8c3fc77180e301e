"""Functions that rearrange arrays, join them, or take statistics of them."""

from __future__ import annotations

import torch

from tests.differential.draft import HALF, INTEGERS, Draft, Unfit, is_float, is_number, is_real
from tests.differential.grammar.registry import Made, production

_REARRANGED = (
    "torch.diag({0})", "torch.diagflat({0})", "torch.diag_embed({0}, {1})", "torch.rot90({0})",
    "torch.rot90({0}, 2)", "torch.fliplr({0})", "torch.flipud({0})", "{0}.swapaxes(0, -1)",
    "{0}.moveaxis(0, -1)", "{0}.ravel()", "torch.atleast_2d({0})", "torch.atleast_3d({0})",
    "{0}.broadcast_to((2, *{0}.shape))", "torch.tril({0}, {1})", "torch.triu({0}, {1})",
    "{0}.adjoint()", "{0}.mH", "torch.vander({0}, 3)", "{0}.tile((2, 1))",
    "{0}.narrow_copy(0, 1, 1)", "torch.view_copy({0}, (-1,))", "torch.transpose_copy({0}, 0, -1)",
    "torch.unsqueeze_copy({0}, {1})", "torch.squeeze_copy({0})", "torch.alias_copy({0})",
    "torch.expand_copy({0}, (2, *{0}.shape))", "torch.unfold_copy({0}, 0, 2, 1)",
    "torch.as_strided_scatter({0}.clone(), {0}[:1], {0}[:1].shape, {0}.clone().stride())",
    "torch.as_strided_copy({0}.contiguous(), {0}.shape, {0}.contiguous().stride())",
    "{0}.reshape_as({0}.mT)", "{0}.short()", "{0}.cdouble()", "{0}.char() + {0}.byte()",
    "{0}.cfloat().view(-1)", "torch.triu_indices({0}.shape[0], 3, {1})", "{0}.dsplit(2)[0]",
    "torch.scalar_tensor({0}.shape[0]) + {0}", "{0}.new_empty_strided({0}.shape, {0}.stride()) * 0",
    "torch.logspace(0, 1, {0}.shape[0]) * {0}", "torch.hann_window({0}.shape[-1]) * {0}",
    "{0}.resolve_neg()",
    "torch.as_strided_copy({0}, (2,), (1,))", "torch.diagonal_copy({0})", "{0}.new_tensor([1, 2])",
    "{0}.type_as({0}.sum())", "torch.unbind_copy({0})", "torch.ravel({0}.mT)",
    "torch.diagonal_scatter({0}.clone(), {0}.diagonal() * 2)", "{0}.repeat_interleave(2, 0)",
    "torch.nn.functional.one_hot(({0}.shape[0] - torch.arange({0}.shape[0])) % 3, 3)",
    "{0}.index_put((torch.tensor([0, 0]),), {0}[:1].expand({0}[:2].shape), accumulate=True)",
)  # fmt: skip


@production("arrays", "rearranged", 4)
def _rearranged(draft: Draft) -> Made:
    x = draft.tensor()
    how = draft.rng.choice(_REARRANGED)
    return Made(how, (x, draft.rng.choice([-1, 0, 1])), rough="accumulate" in how)


_DIVIDED = (
    "{0}.split_with_sizes([1, {0}.shape[0] - 1])", "torch.hsplit({0}, 2)", "torch.vsplit({0}, 2)",
    "{0}.tensor_split(3)", "{0}.tensor_split([1, 3], dim=-1)",
    "torch.split_with_sizes_copy({0}, [1, {0}.shape[0] - 1])",
)  # fmt: skip


@production("arrays", "divided", 1.5)
def _divided(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0)
    return Made(f"{draft.rng.choice(_DIVIDED)}[{draft.rng.choice([0, 1, -1])}]", (x,))


_JOINED = (
    "torch.hstack([{0}, {1}])", "torch.vstack([{0}, {1}])", "torch.dstack([{0}, {1}])",
    "torch.column_stack([{0}, {1}])", "torch.block_diag({0}, {1})", "torch.kron({0}, {1})",
    "torch.cartesian_prod({0}, {1})", "torch.concat([{0}, {1}], -1)",
    'torch.meshgrid({0}, {1}, indexing="ij")[0]', 'torch.meshgrid({0}, {1}, indexing="xy")[1]',
    "torch.broadcast_tensors({0}, {1})[1]", "torch.tensordot({0}, {1}, 1)",
    'torch.einsum("i...,j...->ij...", {0}, {1})', 'torch.einsum("...i,...i->...", {0}, {1})',
    'torch.einsum("ij,kj->ik", {0}, {1})', "torch.inner({0}, {1})", "torch.cross({0}, {1}, dim=-1)",
    "torch.cdist({0}, {1})", "torch.cdist({0}, {1}, p=1.0)", "torch.linalg.vecdot({0}, {1})",
    "torch.addmm({0}, {0}, {1}, beta=0.5)", "torch.mv({0}, {1})", "torch.dot({0}, {1})",
    "torch.vdot({0}, {1})", "torch.addr({0}.new_ones({0}.numel(), {1}.numel()), {0}, {1})",
    "torch.mm({0}, {1})", "torch.addmv({0}.new_ones({0}.shape[0]), {0}, {1})",
    "torch.addbmm({0}[0], {0}, {1}, beta=2)", "torch.outer({0}, {1})", "{0}.matmul({1}.mT)",
    "torch.baddbmm({0}, {0}, {1}, alpha=2)", "torch.chain_matmul({0}, {1})",
    "torch.linalg.multi_dot([{0}, {1}, {1}.mT])", "torch.trapezoid({0}, {1})",
    "torch.cumulative_trapezoid({0}, {1})", "torch.bucketize({0}, torch.tensor([-1.0, 0.5, 2.0]))",
)  # fmt: skip


@production("arrays", "joined", 4)
def _joined(draft: Draft) -> Made:
    x = draft.tensor()
    dtype = draft.value(x.name).dtype
    y = draft.tensor(lambda value: value.dtype is dtype)
    how = draft.rng.choice(_JOINED)
    if "bucketize" in how:
        x = draft.exact(is_real)
    return Made(how, (x, y), rough=True)


_STATISTICS = (
    "{0}.diff(dim={1})", "{0}.diff(n=2, dim={1})", "torch.gradient({0}, dim={1})[0]",
    "{0}.nansum({1})", "{0}.nanmean({1})", "{0}.logcumsumexp({1})", "{0}.aminmax(dim={1})[0]",
    "torch.var_mean({0}, {1})[1]", "torch.std_mean({0}, {1})[0]", "{0}.var({1}, correction=0)",
    "{0}.renorm(2, {1}, 2.0)", "{0}.norm(1, {1})", "torch.trapezoid({0}, dim={1})",
    "{0}.quantile(0.4, {1})", "{0}.nanquantile(0.7, {1})", "{0}.trace()", "{0}.cov()",
    "{0}.corrcoef()", "{0}.sum_to_size({0}.shape)", "torch.norm({0}, 3)", "torch.cov({0}.T)",
    "torch.pdist({0})", "{0}.unflatten(0, (1, -1)).amax({1})", "torch.linalg.norm({0}, dim={1})",
    "torch.softmax({0}, {1}, dtype=torch.float64)", "{0}.prod({1}).mean()",
)  # fmt: skip


@production("arrays", "statistic", 4)
def _statistic(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_float(value) and value.dim() > 0)
    return Made(draft.rng.choice(_STATISTICS), (x, draft.dim(x)), rough=True)


_ORDERED = (
    "{0}.cummax({1})[0]", "{0}.cummin({1})[1]", "{0}.median({1})[0]", "{0}.nanmedian({1})[0]",
    "{0}.mode({1})[0]", "{0}.msort()", "{0}.median()", "{0}.argmin({1}, keepdim=True)",
    "{0}.max({1})[1]", "{0}.kthvalue(1, {1})[0]", "{0}.topk(1, {1})[1]", "{0}.aminmax()[1]",
    "{0}.sort({1}, stable=True)[1]", "torch.unique_consecutive({0})", "{0}.count_nonzero({1})",
    "torch.searchsorted({0}.sort(-1)[0], {0}.contiguous(), right=True)", "{0}.isin({0}[:1])",
)  # fmt: skip


@production("arrays", "ordered", 3)
def _ordered(draft: Draft) -> Made:
    x = draft.exact(lambda value: is_real(value) and value.dim() > 0)
    return Made(draft.rng.choice(_ORDERED), (x, draft.dim(x)))


_REDUCING = ("sum", "prod", "mean", "amax", "amin")


@production("arrays", "scatter_reduce", 1.5)
def _scatter_reduce(draft: Draft) -> Made:
    x = draft.tensor(lambda value: is_number(value) and value.dim() > 0)
    dtype = draft.value(x.name).dtype
    if dtype.is_complex:
        raise Unfit
    dim = draft.dim(x, 1)
    y = draft.like(x, lambda value: value.dtype is dtype)
    name = draft.rng.choice(["scatter_reduce", "scatter_reduce_", "index_reduce"])
    how = draft.rng.choice([_REDUCING, ("prod", "mean", "amax", "amin")][name == "index_reduce"])
    places = f"torch.arange({{0}}.shape[{dim}]) // 2"
    if name != "index_reduce":
        shape = [1] * draft.value(x.name).dim()
        shape[dim] = -1
        places = f"({places}).reshape({tuple(shape)}).expand({{0}}.shape)"
    inside = f", include_self={draft.chance(0.5)}"
    text = f"{{0}}.{name}({dim}, {places}, {{1}}, reduce={{2}}{inside})"
    return Made(text, (x, y, how), rough=True)


_COUNTED = (
    "torch.bincount({0}.reshape(-1).abs() % 6, minlength=6)", "torch.histc({0}.float(), 4, -3, 3)",
    "torch.bincount({0}.reshape(-1).abs() % 4, {0}.reshape(-1).double())",
    "{0}.float().histc(3)", "torch.combinations({0}.reshape(-1)[:4])", "{0}.masked_select({0} > 0)",
    "torch.nonzero_static({0}, size=3)", "torch.unravel_index({0}.abs() % 6, (2, 3))[1]",
    "torch.isin({0}, torch.tensor([1, 3]))", "{0}.put(torch.tensor([0]), {0}.reshape(-1)[:1])",
    "torch.tril_indices({0}.shape[0], 3)", "torch.unique({0}, return_counts=True)[1]",
)  # fmt: skip


@production("arrays", "counted", 1.5)
def _counted(draft: Draft) -> Made:
    x = draft.exact(lambda value: value.dtype in INTEGERS and value.dim() > 0)
    return Made(draft.rng.choice(_COUNTED), (x,))


_OF_MATRICES = (
    "det({1})", "slogdet({1})[1]", "inv({1})", "solve({1}, {0})", "cholesky({1})",
    "cholesky({1}, upper=True)", "eigvalsh({1})", "svdvals({0})", "matrix_exp({1} / 8)",
    "matrix_power({0} / 8, 3)", "pinv({1})", "matrix_norm({0})", 'matrix_norm({0}, "nuc")',
    "matrix_norm({0}, 1)", "solve_triangular({1}.tril(), {0}, upper=False)", "lu_factor({1})[0]",
    "matrix_rank({1})", "cond({1})", "qr({1})[1].abs()", "inv_ex({1})[0]", "eigh({1})[0]",
    "lstsq({1}, {0}).solution", "ldl_factor({1})[0].diagonal(dim1=-2, dim2=-1)",
    "tensorinv({1}, 1)", "svd({0})[1]", "lu_solve(*torch.linalg.lu_factor({1}), {0})",
    "tensorsolve({1}, {0}[..., 0])", "solve_ex({1}, {0})[0]", "cholesky_ex({1})[0]",
    "vander({0}[..., 0] / 8, N=3)",
)  # fmt: skip


@production("arrays", "of_matrices", 2)
def _of_matrices(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() >= 2 and is_float(value) and value.dtype not in HALF)
    # Well conditioned: what they round is then as far off as in a product.
    square = "({0} @ {0}.mT / 8 + 4 * torch.eye({0}.shape[-2], dtype={0}.dtype))"
    how = draft.rng.choice(_OF_MATRICES).replace("{1}", square)
    return Made(f"torch.linalg.{how}", (x,), rough=True)


_TRANSFORMS = (
    "rfft({0}, dim={1})", "irfft({0}, dim={1})", "fft({0}, dim={1})", "ifft({0}, dim={1})",
    "hfft({0}, dim={1})", "fft2({0})", "irfft2({0})", "fftn({0})", "fftshift({0})",
    "ifftshift({0}, {1})", 'rfft({0}, 5, {1}, norm="ortho")', 'ifft({0}, 3, {1}, norm="forward")',
    "ihfft({0}, dim={1})", "hfft2({0})", "ifftn({0})", "rfftn({0})", "irfftn({0})", "ihfftn({0})",
)  # fmt: skip


@production("arrays", "transform", 1.5)
def _transform(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() > 0 and value.dtype is torch.float32)
    how = draft.rng.choice(_TRANSFORMS)
    return Made(f"torch.fft.{how}", (x, draft.dim(x)), rough=True)


_SIGNALS = (
    "torch.stft({0}, 4, window=torch.hann_window(4), return_complex=True)",
    "torch.stft({0}, 4, hop_length=1, center=False, return_complex=True)",
    "torch.istft(torch.stft({0}, 4, return_complex=True), 4)",
)


@production("arrays", "signal", 0.7)
def _signal(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dim() in (1, 2) and value.dtype is torch.float32)
    return Made(draft.rng.choice(_SIGNALS), (x,), rough=True)
