"""Rules for operators that may keep the rows of a dimension independent; others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding import moves
from pjrt_bridge.torch_interop.passes.padding.rows import ALONE, Block, Dims, MixesRows, Rule, Use


def rule_of(target: object) -> Rule | None:
    """The rule of an overload, else of pointwise operators, else of all its overloads."""
    name = compat.operator_name(target)
    if name is None:
        return None
    if name in _RULES:
        return _RULES[name]
    if isinstance(target, compat.OpOverload) and torch.Tag.pointwise in target.tags:
        return _POINTWISE
    return _RULES.get(name.rpartition(".")[0])


_NOWHERE: Dims = {}

# -- elements, and dimensions other than the one in question ---------------------------------------


def _pointwise(use: Use) -> Dims:
    return use.aligned(use.tensors)


def _divided(use: Use) -> Dims:
    """In PyTorch an integer division by zero raises, and padding may be zero."""
    divisor = list(use.arguments.values())[1]
    if use.dims(divisor) and not use.result.dtype.is_floating_point:
        raise MixesRows("it may divide by zero in the padding")
    return _pointwise(use)


def _checked(use: Use) -> Dims:
    raise MixesRows("it may refuse what is in the padding")


def _along(name: str) -> Callable[[Use], Dims]:
    """Operators that work along the dimensions that an argument names."""

    def dims(use: Use) -> Dims:
        ranks = {len(use.shape(tensor)) for tensor in use.tensors}
        if len(ranks) != 1:
            raise MixesRows("its arguments differ in their number of dimensions")
        found = _pointwise(use)
        if found.keys() & use.named(name, ranks.pop()):
            raise MixesRows("it works along the dimension")
        return found

    return dims


def _before(count: int) -> Callable[[Use], Dims]:
    """Operators that work along the last dimensions."""

    def dims(use: Use) -> Dims:
        found = _pointwise(use)
        if any(dim >= len(use.shape(tensor)) - count for tensor in use.tensors for dim in found):
            raise MixesRows("it works along the dimension")
        return found

    return dims


def _reduced(use: Use) -> Dims:
    found = use.dims("self")
    named = use.named("dim", len(use.shape("self")))
    if found.keys() & named:
        raise MixesRows("it reduces over the dimension")
    return found if use["keepdim"] else moves.dropped(found, named)


# -- products, tables, layers ----------------------------------------------------------------------


def _multiplied(left: str, right: str, bias: str | None = None) -> Callable[[Use], Dims]:
    """A product of matrices, or of a matrix and a vector, alone or in a batch."""

    def dims(use: Use) -> Dims:
        rows, columns = use.dims(left), use.dims(right)
        last, other = len(use.shape(left)) - 1, len(use.shape(right)) - 1
        if last in rows or max(other - 1, 0) in columns:
            raise MixesRows("it sums over the dimension")
        if last == 2 and rows.get(0) != columns.get(0):
            raise MixesRows("it combines the dimension with one of another size")
        found = dict(rows)
        if other > 0 and other in columns:
            found[last] = columns[other]
        return _added(use, bias, found)

    return dims


def _added(use: Use, name: str | None, found: Dims) -> Dims:
    """Dimensions after a tensor, by name, was added to the result."""
    if name is not None and use[name] is not None:
        rank = use.results[0].dim()
        use.meets(use[name], found, rank)
        if any(found.get(at) != block for at, block in use.aligned([use[name]], rank).items()):
            raise MixesRows("it combines the dimension with one of another size")
    return found


def _embedded(use: Use) -> Dims:
    _untouched(use.dims("weight"), [0])
    use.looks_up(use["indices"], compat.promise(use["weight"]).shape[0])
    return {**use.dims("indices"), **_shifted(use.dims("weight"), len(use.shape("indices")) - 1)}


def _shifted(dims: Dims, by: int) -> Dims:
    return {dim + by: block for dim, block in dims.items()}


def _untouched(dims: Dims, looked_up: Iterable[int]) -> None:
    if dims.keys() & set(looked_up):
        # A negative index would count from the end of the padding.
        raise MixesRows("it looks up rows of the dimension")


def _indexed(use: Use) -> Dims:
    indices = {at: index for at, index in enumerate(use["indices"]) if index is not None}
    sizes = compat.promise(use["self"]).shape
    found = use.dims("self")
    own = {at for at in found.keys() & indices if _is_own_row(use, found[at], indices[at])}
    _untouched(found, indices.keys() - own)
    for at, index in indices.items():
        if compat.promise(index).dtype in (torch.bool, torch.uint8):
            raise MixesRows("it looks up with a mask")
        if at not in own:
            use.looks_up(index, sizes[at])
    inner = use.aligned(indices.values())
    rank = max(len(use.shape(index)) for index in indices.values())
    first, last = min(indices), max(indices)
    front = first if last - first + 1 == len(indices) else 0
    left = [dim for dim in range(len(sizes)) if dim not in indices]
    moved = {dim: at if at < front else at + rank for at, dim in enumerate(left)}
    kept = {moved[dim]: block for dim, block in found.items() if dim not in own}
    return {**_shifted(inner, front), **kept}


def _is_own_row(use: Use, block: Block, index: fx.Node) -> bool:
    """Whether an index selects, in each row, that same row."""
    counts = use.contents.get(index) == "count" and list(use.dims(index).values()) == [ALONE]
    return counts and block == ALONE


def _index_selected(use: Use) -> Dims:
    found, sizes = use.dims("self"), compat.promise(use["self"]).shape
    (dim,) = use.named("dim", len(sizes))
    _untouched(found, [dim])
    use.looks_up(use["index"], sizes[dim])
    return {**found, **_shifted(use.dims("index"), dim)}


def _gathered(use: Use) -> Dims:
    """Gathering and scattering along another dimension, in each row."""
    found = _along("dim")(use)
    sizes = compat.promise(use["self"]).shape
    (dim,) = use.named("dim", len(sizes))
    if use.dims("self") != use.dims("index"):
        raise MixesRows("it combines the dimension with one of another size")
    use.looks_up(use["index"], sizes[dim])
    return found


def _layer_norm(use: Use) -> Dims:
    found, rank = use.dims("input"), len(use.shape("input"))
    if any(dim >= rank - len(use["normalized_shape"]) for dim in found):
        raise MixesRows("it normalizes over the dimension")
    if any((use["output_mask"] or [False])[1:]):
        raise MixesRows("it reduces over the dimension")
    return found


def _batch_alone(image: str, *others: str) -> Callable[[Use], Dims]:
    """Only the first dimension of one argument keeps its rows apart."""

    def dims(use: Use) -> Dims:
        found = use.dims(image)
        ranks = {len(use.shape(name)) for name in (image, *others[:1])}
        if found.keys() != {0} or len(ranks) > 1 or any(use.dims(name) for name in others):
            raise MixesRows("it works along the dimension")
        return found

    return dims


def _batch_norm(use: Use) -> list[Dims]:
    found = use.dims("input")
    if 1 in found:
        raise MixesRows("it has a weight for each row of the dimension")
    return [found, _NOWHERE, _NOWHERE]


def _attention(use: Use) -> Dims:
    query, keys, mask = use.dims("query"), use.dims("key"), use.dims("attn_mask")
    if max({*keys, *use.dims("value")}, default=0) > 1 or len(use.shape("attn_mask")) - 1 in mask:
        raise MixesRows("it sums over the dimension")
    batch = {dim: block for dim, block in query.items() if dim < 2}
    if use["dropout_p"] != 0 or 3 in query or not batch == keys == use.dims("value"):
        raise MixesRows("it is not known to keep the rows of the dimension apart")
    return _added(use, "attn_mask", query)


# -- creators --------------------------------------------------------------------------------------


def _created(use: Use) -> Dims:
    return use.plain(use.result)


_ROOMY = (torch.int32, torch.int64, torch.float32, torch.float64)


def _counted(use: Use) -> Dims:
    if use.result.dtype not in _ROOMY:
        raise MixesRows("it may count further than the element type can in the padding")
    start, step = use["start"] or 0, 1 if use["step"] is None else use["step"]
    if (start, step) != (0, 1):
        raise MixesRows("it counts otherwise than the rows")
    return use.plain(use.result)


_POINTWISE = Rule(_pointwise)


def _table() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}

    def put(rule: Rule, *names: str) -> None:
        rules.update({name if "." in name else f"aten.{name}": rule for name in names})

    put(_POINTWISE, *_ELEMENTWISE)
    put(Rule(_divided), "aten.div.Tensor_mode", "aten.fmod.Tensor", "aten.floor_divide")
    put(Rule(_divided), "aten.remainder.Tensor", "aten.remainder.Scalar_Tensor")
    put(Rule(_checked), "aten.mvlgamma.default")
    put(Rule(_along("dim")), *_ALONG)
    put(Rule(_along("dims")), "flip", "roll")
    put(Rule(_along("dimension")), "unfold")
    put(Rule(_before(1)), "avg_pool1d", "reflection_pad1d", "replication_pad1d")
    put(Rule(_before(2)), *_IMAGES)
    put(Rule(_before(3)), *_VOLUMES)
    put(Rule(_reduced), *_REDUCTIONS)

    put(Rule(_pointwise, moves=True), *_COPIES)
    put(Rule(moves.permuted, moves=True), "permute")
    put(Rule(moves.transposed, moves=True), "transpose")
    put(Rule(moves.reversed_dims, moves=True), "t", "numpy_T")
    put(Rule(moves.unsqueezed, moves=True), "unsqueeze")
    put(Rule(moves.squeezed, moves=True), "squeeze")
    put(Rule(moves.selected, moves=True), "select", "unbind")
    put(Rule(moves.sliced, ("end",), moves=True), "slice")
    put(Rule(_along("dim"), moves=True), "split", "split_with_sizes")
    put(Rule(moves.stacked, moves=True), "stack")
    put(Rule(moves.concatenated, moves=True), "cat")
    put(Rule(moves.expanded, ("size",), moves=True), "expand")
    put(Rule(moves.repeated, ("repeats",), moves=True), "repeat")
    put(Rule(moves.bordered), "constant_pad_nd")
    view = Rule(moves.viewed, ("size", "shape"), moves=True, computes=True)
    put(view, "view", "_unsafe_view", "reshape")
    put(Rule(lambda use: use.dims("self")), "aten.view.dtype", "view_as_real", "view_as_complex")

    put(Rule(_multiplied("self", "mat2")), "mm", "bmm")
    put(Rule(_multiplied("mat1", "mat2", "self")), "addmm")
    put(Rule(_multiplied("batch1", "batch2", "self")), "baddbmm")
    put(Rule(_multiplied("self", "vec")), "mv")
    put(Rule(_multiplied("mat", "vec", "self")), "addmv")
    put(Rule(_embedded), "embedding")
    put(Rule(_indexed), "aten.index.Tensor", "aten._unsafe_index.Tensor")
    put(Rule(_index_selected), "index_select")
    put(Rule(_gathered), "gather", "scatter", "scatter_add", "scatter_reduce")
    put(Rule(_layer_norm), "native_layer_norm", "native_layer_norm_backward")
    put(Rule(_batch_alone("input"), ("N",)), "native_group_norm")
    put(Rule(_batch_alone("input", "weight", "bias")), "convolution")
    put(Rule(_batch_norm), "_native_batch_norm_legit_no_training")
    put(Rule(_attention), "_scaled_dot_product_flash_attention_for_cpu")
    put(Rule(_created, ("size",), makes="alike"), *_CREATORS)
    put(Rule(_created, ("size", "n", "m")), "empty", "empty_permuted", "new_empty", "eye")
    put(Rule(_counted, ("end", "length"), makes="count"), "arange", "prims.iota")
    return rules


_ELEMENTWISE = (
    *("masked_fill", "where", "fill", "complex", "polar", "log_sigmoid_forward", "_prelu_kernel"),
    *(
        "elu_backward",
        "hardtanh_backward",
        "hardsigmoid_backward",
        "hardswish",
        "softplus_backward",
    ),
    *("hardswish_backward", "leaky_relu_backward", "log_sigmoid_backward"),
    *("copy", "tril", "triu", "full_like", "zeros_like", "ones_like", "empty_like"),
)
_ALONG = (
    *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
    *("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort", "argsort", "topk"),
)
_IMAGES = (
    *("max_pool2d_with_indices", "max_pool2d_with_indices_backward"),
    *("avg_pool2d", "avg_pool2d_backward", "_adaptive_avg_pool2d", "adaptive_max_pool2d"),
    *("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"),
    *("reflection_pad2d", "replication_pad2d"),
)
_VOLUMES = ("max_pool3d_with_indices", "avg_pool3d", "_adaptive_avg_pool3d", "upsample_nearest3d")
_REDUCTIONS = (
    *("sum", "nansum", "mean", "prod", "amax", "amin", "any", "all", "var", "std", "var_mean"),
    *("argmax", "argmin", "max", "min", "median", "nanmedian", "mode", "kthvalue", "aminmax"),
    *("logsumexp", "linalg_vector_norm", "count_nonzero"),
)
_COPIES = (
    *("alias", "detach", "aten.clone.default", "_to_copy", "lift_fresh_copy"),
    *("prims.convert_element_type", "_conj", "_conj_physical"),
)
_CREATORS = ("full", "zeros", "ones", "new_full", "new_zeros", "new_ones")
_RULES = _table()
