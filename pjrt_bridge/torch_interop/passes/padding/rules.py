"""The rule of each operator that can be padded: how padded dimensions go through it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.foreign_functions import OPERATOR
from pjrt_bridge.torch_interop.passes.lift_scalars import use_of
from pjrt_bridge.torch_interop.passes.padding import positions
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import MixesRows, PaddedDims
from pjrt_bridge.torch_interop.passes.padding.operators import (
    adaptive,
    bags,
    borders,
    creators,
    diagonals,
    draws,
    foreign,
    fourier,
    groups,
    lookups,
    masks,
    matrices,
    mixing,
    moves,
    norms,
    ordering,
    pools,
    products,
    recurrent,
    replacing,
    sampling,
    searches,
    strides,
)
from pjrt_bridge.torch_interop.passes.padding.rows import PaddingRule, Use


def rule_of(target: object) -> PaddingRule | None:
    """The rule of an overload, else of pointwise operators, else of all its overloads."""
    name = compat.operator_name(target)
    if name is None:
        return None
    if name in _RULES:
        return _RULES[name]
    if isinstance(target, compat.OpOverload) and torch.Tag.pointwise in target.tags:
        return _POINTWISE
    return _RULES.get(name.rpartition(".")[0])


# -- elements, and dimensions other than the one in question ---------------------------------------


def _pointwise(use: Use) -> PaddedDims:
    _lift_numbers(use)
    return use.aligned(use.tensors)


_DIVIDING = {
    "aten.fmod.Scalar": "aten.fmod.Tensor",
    "aten.remainder.Scalar": "aten.remainder.Tensor",
    "aten.div.Scalar_mode": "aten.div.Tensor_mode",
    "aten.div.Tensor_mode": "aten.div.Tensor_mode",
    "aten.floor_divide.Scalar": "aten.floor_divide.default",
    "aten.floor_divide.default": "aten.floor_divide.default",
}
"""Operators with a number that integers are divided by, and those with a tensor of it."""


def _lift_numbers(use: Use) -> None:
    """Have numbers that depend on sizes read from tensors, with the sizes of the call."""
    lifted = [
        item
        for item in use.node.all_input_nodes
        if not isinstance(compat.promise(item), torch.Tensor) and use.is_padded(use.number(item))
    ]
    if not lifted:
        return
    if (compat.operator_name(use.node.target) or "").startswith("aten.clamp"):
        use.emit = lambda e: _clamped(e, use)
        return
    number = lifted[0]
    name = compat.operator_name(use.node.target) or ""
    found, divides = use_of(use.node, number), name in _DIVIDING
    if len(lifted) > 1 or (not divides and (found is None or found.overload is None)):
        raise MixesRows("it uses the size as a number")
    if divides or found is None or found.overload is None:
        name, dtype = _DIVIDING[name], use.result.dtype
        use.needs_elements(use.number(number))
    else:
        name, dtype = found.overload, found.dtype

    def emit(e: Emission) -> Any:
        value = e.actual(use.number(number), dtype)
        args = [value if item is number else e.mapped(item) for item in use.node.args]
        return e.call(name, *args, **e.mapped(use.node.kwargs))

    use.emit = emit


def _clamped(e: Emission, use: Use) -> fx.Node:
    dtype = use.result.dtype

    def limit(number: Any) -> fx.Node | None:
        if number is None or use.is_padded(number):
            return None if number is None else e.actual(number, dtype)
        return e.call("aten.full.default", [], number, dtype=dtype)

    limits = [limit(use.number(use[name])) for name in ("min", "max")]
    return e.call("aten.clamp.Tensor", e[use["self"]], *limits)


def _divided(use: Use) -> PaddedDims:
    """In PyTorch an integer division by zero raises, and padding may be zero."""
    divisor = list(use.arguments.values())[1]
    if use.dims(divisor) and not use.result.dtype.is_floating_point:
        use.fill(divisor, 1)
    return _pointwise(use)


def _checked(use: Use) -> PaddedDims:
    raise MixesRows("it may refuse what is in the padding")


def _as_they_are(use: Use) -> PaddedDims:
    """What is given as it is; for positions, checked."""
    use.emit = lambda e: e[use["index"]]
    return use.dims("index")


def _triangle(use: Use) -> PaddedDims:
    """What is above or below a diagonal depends on positions in the last two dimensions."""
    found = use.dims("self")
    for dim in found.keys() & {use.rank("self") - 1, use.rank("self") - 2}:
        use.needs_prefix(found[dim])
    return found


def _before(count: int) -> Callable[[Use], PaddedDims]:
    """Operators that work along the last dimensions."""

    def dims(use: Use) -> PaddedDims:
        found = use.aligned(use.tensors)
        if any(dim >= use.rank(tensor) - count for tensor in use.tensors for dim in found):
            raise MixesRows("it works along the dimension")
        return found

    return dims


_POINTWISE = PaddingRule(_pointwise)


def _table() -> dict[str, PaddingRule]:
    rules: dict[str, PaddingRule] = {}

    def put(rule: PaddingRule, *names: str) -> None:
        rules.update({name if "." in name else f"aten.{name}": rule for name in names})

    put(_POINTWISE, *_ELEMENTWISE)
    put(PaddingRule(_triangle), "tril", "triu")
    put(PaddingRule(_divided), "aten.div.Tensor_mode", "aten.fmod.Tensor", "aten.floor_divide")
    put(PaddingRule(_divided), "aten.remainder.Tensor", "aten.remainder.Scalar_Tensor")
    put(PaddingRule(_checked), "aten.mvlgamma.default")
    put(PaddingRule(moves.unfolded), "unfold")
    put(PaddingRule(fourier.transformed), "_fft_r2c", "_fft_c2c", "_fft_c2r")
    put(PaddingRule(_before(1)), "avg_pool1d", "reflection_pad1d", "replication_pad1d")
    put(PaddingRule(_before(2)), *_IMAGES)
    put(PaddingRule(_before(3)), "upsample_nearest3d")
    put(PaddingRule(ordering.most_frequent), "mode")
    put(PaddingRule(mixing.extremes), "aminmax")
    put(
        PaddingRule(ordering.of_rank),
        "aten.kthvalue.default",
        "aten.median.dim",
        "aten.nanmedian.dim",
    )
    put(PaddingRule(ordering.median), "aten.median.default", "aten.nanmedian.default")
    put(PaddingRule(lookups.repeated), "aten.repeat_interleave.Tensor")
    put(PaddingRule(searches.bucketed), "aten.bucketize.Tensor", "aten.searchsorted.Tensor")

    put(PaddingRule(mixing.filled(0)), "sum", "nansum", "count_nonzero", "any")
    put(PaddingRule(mixing.filled(1)), "prod", "all")
    put(PaddingRule(mixing.counted_in_bins), "histc")
    put(PaddingRule(mixing.filled(-inf, elements=True)), "amax", "aten.max.default")
    put(PaddingRule(mixing.filled(inf, elements=True)), "amin", "aten.min.default")
    put(PaddingRule(mixing.filled(-inf)), "logsumexp")
    put(PaddingRule(mixing.positions(-inf)), "argmax", "aten.max.dim")
    put(PaddingRule(mixing.positions(inf)), "argmin", "aten.min.dim")
    put(PaddingRule(mixing.norm), "linalg_vector_norm")
    put(PaddingRule(mixing.mean), "mean")
    put(PaddingRule(mixing.variance), "var", "std", "var_mean", "std_mean")
    put(PaddingRule(mixing.softmax), "_softmax", "_log_softmax")
    put(
        PaddingRule(mixing.softmax_backward), "_softmax_backward_data", "_log_softmax_backward_data"
    )
    put(PaddingRule(mixing.scanned(0)), "cumsum")
    put(PaddingRule(mixing.scanned(1)), "cumprod")
    put(PaddingRule(mixing.scanned(-inf)), "logcumsumexp")
    put(PaddingRule(mixing.scanned(None)), "cummax", "cummin")
    put(PaddingRule(ordering.ordered), "sort", "argsort")
    put(PaddingRule(ordering.largest, ("k",)), "topk")
    put(PaddingRule(_as_they_are), compat.POSITIONS)
    put(PaddingRule(mixing.nll_loss), "nll_loss_forward")
    put(PaddingRule(mixing.nll_loss_backward), "nll_loss_backward")

    put(PaddingRule(_pointwise, moves=True), *_COPIES)
    put(PaddingRule(moves.written), "copy", "copy_")
    put(PaddingRule(moves.permuted, moves=True), "permute")
    put(PaddingRule(moves.transposed, moves=True), "transpose")
    put(PaddingRule(moves.reversed_dims, moves=True), "t", "numpy_T")
    put(PaddingRule(moves.unsqueezed, moves=True), "unsqueeze")
    put(PaddingRule(moves.squeezed, moves=True), "squeeze")
    put(PaddingRule(moves.selected, ("index",)), "select")
    put(PaddingRule(moves.unbound, moves=True), "unbind")
    put(PaddingRule(moves.sliced), "slice")
    put(PaddingRule(moves.split), "split", "split_with_sizes")
    put(PaddingRule(moves.stacked, moves=True), "stack")
    put(PaddingRule(moves.concatenated), "cat")
    put(PaddingRule(moves.expanded, ("size",)), "expand")
    put(PaddingRule(moves.repeated, ("repeats",)), "repeat")
    put(PaddingRule(borders.bordered), "constant_pad_nd")
    put(PaddingRule(moves.viewed, ("size", "shape"), moves=True), "view", "_unsafe_view", "reshape")
    put(PaddingRule(moves.same), "aten.view.dtype", "view_as_real", "view_as_complex")
    put(PaddingRule(diagonals.diagonal), "diagonal")
    put(PaddingRule(diagonals.diagonal_in), "diagonal_scatter")
    put(PaddingRule(moves.flipped), "flip")
    put(PaddingRule(moves.rolled), "roll")

    put(PaddingRule(products.multiplied("self", "mat2")), "mm", "bmm")
    put(PaddingRule(products.multiplied("mat1", "mat2", "self")), "addmm")
    put(PaddingRule(products.multiplied("batch1", "batch2", "self")), "baddbmm")
    put(PaddingRule(products.multiplied_and_summed), "addbmm")
    put(PaddingRule(products.grouped("self", "mat2", "offs")), "_grouped_mm")
    put(PaddingRule(products.grouped("input", "weight", "offs")), f"{_GROUPED}.default")
    rule = products.grouped("input", "weight", "offs", "grad_output")
    put(PaddingRule(rule), f"{_GROUPED}_backward.default")
    put(PaddingRule(products.multiplied("self", "vec")), "mv")
    put(PaddingRule(products.multiplied("mat", "vec", "self")), "addmv")
    put(PaddingRule(products.multiplied("self", "tensor")), "dot")
    put(PaddingRule(matrices.of_square("self", "matrix", "batch")), "linalg_cholesky_ex")
    put(PaddingRule(matrices.of_square("self", "matrix")), "cholesky", "cholesky_inverse")
    put(PaddingRule(matrices.of_square("A", "matrix", "batch")), "linalg_inv_ex")
    put(PaddingRule(matrices.determinant("batch", "matrix", "rows")), "_linalg_det")
    put(PaddingRule(matrices.determinant("batch", "batch", "matrix", "rows")), "_linalg_slogdet")
    put(PaddingRule(matrices.of_square("A", "matrix", "rows", "batch")), "linalg_lu_factor_ex")
    put(PaddingRule(matrices.solved("A", "B", "matrix", "rows", "batch")), "_linalg_solve_ex")
    put(PaddingRule(matrices.unpacked), "lu_unpack")
    put(PaddingRule(matrices.solved("LU", "B")), "linalg_lu_solve")
    put(PaddingRule(matrices.solved("self", "B")), "linalg_solve_triangular")
    put(PaddingRule(matrices.solved("A", "self", "matrix")), "triangular_solve")
    put(PaddingRule(matrices.solved("input2", "self")), "cholesky_solve")
    put(PaddingRule(matrices.checked, only_checks=True), "_linalg_check_errors")
    put(PaddingRule(matrices.eigenvalues), "_linalg_eigh")
    put(PaddingRule(matrices.exponential), "linalg_matrix_exp")
    put(PaddingRule(matrices.orthogonal), "linalg_qr")
    put(PaddingRule(matrices.singular), "_linalg_svd")
    put(PaddingRule(matrices.pseudoinverse), "aten.linalg_pinv.atol_rtol_tensor")
    put(PaddingRule(products.distances), "_cdist_forward")
    put(PaddingRule(products.distances_backward), "_cdist_backward")
    put(PaddingRule(products.trilinear), "_trilinear")
    put(PaddingRule(products.convolved, ("groups",)), "convolution")
    put(PaddingRule(products.convolved_backward, ("groups", "bias_sizes")), "convolution_backward")
    put(PaddingRule(products.attention), "_scaled_dot_product_flash_attention_for_cpu")
    put(
        PaddingRule(products.attention_backward),
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
    put(PaddingRule(norms.layer_norm), "native_layer_norm")
    put(PaddingRule(norms.layer_norm_backward), "native_layer_norm_backward")
    put(PaddingRule(groups.group_norm, ("N",)), "native_group_norm")
    put(PaddingRule(groups.group_norm_backward, ("N",)), "native_group_norm_backward")
    put(PaddingRule(norms.fixed_batch_norm), "_native_batch_norm_legit_no_training")
    put(PaddingRule(norms.batch_norm), "_native_batch_norm_legit_functional")
    put(PaddingRule(norms.batch_norm), "aten._native_batch_norm_legit.no_stats")
    put(PaddingRule(norms.batch_norm_backward), "native_batch_norm_backward")

    for count in (2, 3):
        put(PaddingRule(pools.largest(count)), f"max_pool{count}d_with_indices")
        put(PaddingRule(pools.largest_backward(count)), f"max_pool{count}d_with_indices_backward")
        put(PaddingRule(pools.mean(count)), f"avg_pool{count}d")
        put(PaddingRule(pools.mean_backward(count)), f"avg_pool{count}d_backward")
    # An image that is pooled to a size of its own keeps that dimension.
    for count in (2, 3):
        put(PaddingRule(adaptive.mean(count), ("output_size",)), f"_adaptive_avg_pool{count}d")
        put(PaddingRule(adaptive.mean_backward(count)), f"_adaptive_avg_pool{count}d_backward")
        put(PaddingRule(adaptive.largest(count), ("output_size",)), f"adaptive_max_pool{count}d")
        put(PaddingRule(pools.positions_backward(count)), f"adaptive_max_pool{count}d_backward")

    for count in (2, 3):
        put(PaddingRule(sampling.sampled), f"grid_sampler_{count}d")
        put(PaddingRule(sampling.sampled_backward), f"grid_sampler_{count}d_backward")
    for count in (1, 2, 3):
        put(PaddingRule(borders.repeated_backward(count)), f"replication_pad{count}d_backward")

    put(PaddingRule(lookups.embedded), "embedding")
    put(PaddingRule(lookups.embedded_backward, ("num_weights",)), "embedding_dense_backward")
    put(PaddingRule(bags.summed), "_embedding_bag", "_embedding_bag_forward_only")
    put(
        PaddingRule(bags.summed_backward),
        "_embedding_bag_backward",
        "_embedding_bag_dense_backward",
    )
    put(PaddingRule(bags.weights_backward), "_embedding_bag_per_sample_weights_backward")
    put(PaddingRule(lookups.indexed), "aten.index.Tensor", "aten._unsafe_index.Tensor")
    put(PaddingRule(lookups.written_at), "index_put", "_unsafe_index_put")
    put(PaddingRule(lookups.index_selected), "index_select")
    put(PaddingRule(lookups.gathered), "gather")
    put(PaddingRule(masks.scattered), "masked_scatter")
    put(PaddingRule(masks.scattered_backward, ("sizes",)), "masked_scatter_backward")
    put(PaddingRule(masks.positions, ("size",)), "nonzero_static")
    put(PaddingRule(masks.nonzero), "nonzero")
    put(PaddingRule(masks.distinct), "_unique2", "unique_consecutive")
    put(PaddingRule(positions.checked), "pjrt_bridge.checked_positions.default")
    put(PaddingRule(positions.checked_divisors), "pjrt_bridge.checked_divisors.default")
    put(PaddingRule(lookups.scattered), "scatter", "scatter_add", "scatter_reduce")
    put(PaddingRule(lookups.index_added), "index_add")
    put(PaddingRule(lookups.index_copied), "index_copy")
    put(PaddingRule(replacing.sliced_in), "slice_scatter")
    put(PaddingRule(strides.taken), "as_strided", "as_strided_copy")
    put(PaddingRule(strides.written), "as_strided_scatter")
    put(PaddingRule(replacing.selected_in), "select_scatter")

    put(PaddingRule(recurrent.scanned), f"{compat.OWN_NAMESPACE}.recurrence")
    put(PaddingRule(recurrent.scanned_backward), f"{compat.OWN_NAMESPACE}.recurrence_backward")

    put(PaddingRule(creators.filled, ("size",)), *_FILLED)
    put(PaddingRule(creators.created, ("size",)), "empty", "empty_permuted", "new_empty")
    put(PaddingRule(creators.identity, ("n", "m")), "eye")
    put(PaddingRule(creators.counted), "arange", "prims.iota")
    put(PaddingRule(foreign.called), OPERATOR)
    put(PaddingRule(creators.created_anew), "new_empty_strided", "empty_strided")
    put(PaddingRule(draws.drawn, ("size",)), *draws.DRAWING)
    put(PaddingRule(draws.chosen, ("num_samples",)), f"{compat.OWN_NAMESPACE}.multinomial")
    put(PaddingRule(draws.permutation), f"{compat.OWN_NAMESPACE}.randperm")
    put(PaddingRule(draws.dropped_out), f"{compat.OWN_NAMESPACE}.native_dropout")
    return rules


_ELEMENTWISE = (
    *("masked_fill", "where", "fill", "complex", "polar", "log_sigmoid_forward", "_prelu_kernel"),
    *("elu_backward", "hardtanh_backward", "hardsigmoid_backward", "hardswish"),
    *("softplus_backward", "hardswish_backward", "leaky_relu_backward", "log_sigmoid_backward"),
    *("full_like", "zeros_like", "ones_like", "empty_like"),
)
_IMAGES = (
    *("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"),
    *("reflection_pad2d", "replication_pad2d"),
)
_COPIES = (
    *("alias", "detach", "aten.clone.default", "_to_copy", "lift_fresh_copy"),
    *("prims.convert_element_type", "_conj", "_conj_physical", "_neg_view"),
)
_FILLED = ("full", "zeros", "ones", "new_full", "new_zeros", "new_ones", "scalar_tensor")
_GROUPED = "transformers.grouped_mm_fallback"
_RULES = _table()
