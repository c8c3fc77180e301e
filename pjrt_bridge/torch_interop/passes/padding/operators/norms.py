"""Layer and batch norm with padded dimensions: beside what is normalized over, and in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import MixesRows, PaddedDims, product
from pjrt_bridge.torch_interop.passes.padding.formulas import Term, compute_type
from pjrt_bridge.torch_interop.passes.padding.operators.products import added
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def layer_norm(use: Use) -> list[PaddedDims]:
    """Layer norm; statistics have one element along each dimension that is normalized over."""
    found, outside = _divided(use)
    if found != outside:
        inside = _of_weights(use, found)
        for name in ("weight", "bias"):
            added(use, name, found)
            _is_padded_as(use, name, inside)
        use.emit = lambda e: _LayerNorm(e, use, found).results()
    return [found, outside, outside]


def layer_norm_backward(use: Use) -> list[PaddedDims]:
    """Its gradients; those of weight and bias are sums over all rows."""
    found, outside = _divided(use)
    wanted = use["output_mask"]
    inside = _of_weights(use, found)
    use.same(found, use.dims("grad_out"))
    if found != outside:
        _is_padded_as(use, "weight", inside)
        use.emit = lambda e: _LayerNorm(e, use, found).gradients()
    elif any(wanted[1:]):
        for name in ("grad_out", "input", "mean", "rstd"):
            use.fill(name, 0)
    return [
        one if is_wanted else {}
        for one, is_wanted in zip((found, inside, inside), wanted, strict=True)
    ]


def _divided(use: Use) -> tuple[PaddedDims, PaddedDims]:
    """The padded dimensions, and those of them that are not normalized over."""
    found = use.dims("input")
    first = use.rank("input") - len(use["normalized_shape"])
    return found, {dim: extent for dim, extent in found.items() if dim < first}


def _of_weights(use: Use, found: PaddedDims) -> PaddedDims:
    """The padded dimensions of a weight for each element that is normalized over."""
    first = use.rank("input") - len(use["normalized_shape"])
    return {dim - first: extent for dim, extent in found.items() if dim >= first}


def _is_padded_as(use: Use, name: str, wanted: PaddedDims) -> None:
    """Check that a weight, if there is one, has these padded dimensions.

    Raises:
        MixesRows: it has not.
    """
    if use[name] is not None:
        use.same(wanted, use.dims(name))


class _LayerNorm:
    """One call, over what is padded among other dimensions."""

    def __init__(self, e: Emission, use: Use, dims: PaddedDims) -> None:
        self._e, self._use, self._dims = e, use, dims
        promise = compat.promise(use["input"])
        self._dtype = compute_type(promise.dtype)
        self._rank = use.rank("input")
        first = self._rank - len(use["normalized_shape"])
        self._over, self._rows = list(range(first, self._rank)), list(range(first))
        sizes = (use.shape("input")[dim] for dim in self._over)
        self._count = Term(e, e.count(product(sizes), self._dtype))

    def results(self) -> list[Any]:
        use = self._use
        x = self._given("input")
        mean = self._mean(x)
        gap = x - mean
        rstd = (self._mean(gap * gap) + use["eps"]).call("rsqrt.default")
        made = self._weighted(gap * rstd)
        if use["bias"] is not None:
            made = made + self._given("bias")
        return self._as_promised([made, mean, rstd])

    def gradients(self) -> list[Any]:
        use = self._use
        rstd, grad = self._given("rstd"), self._kept(self._given("grad_out"))
        normal = self._kept((self._given("input") - self._given("mean")) * rstd)
        weighted = self._weighted(grad)
        own = weighted - self._mean(weighted) - normal * self._mean(weighted * normal)
        made = [own * rstd, *map(self._of_rows, (grad * normal, grad))]
        wanted = use["output_mask"]
        return self._as_promised(
            [x if is_wanted else None for x, is_wanted in zip(made, wanted, strict=True)]
        )

    def _given(self, name: str) -> Term:
        return Term(self._e, self._e[self._use[name]]).to(self._dtype)

    def _kept(self, x: Term) -> Term:
        return Term(self._e, self._e.filled(x.node, self._dims, self._rank, 0, self._dtype))

    def _mean(self, x: Term) -> Term:
        return self._kept(x).call("sum.dim_IntList", self._over, True) / self._count

    def _of_rows(self, x: Term) -> Term:
        return x.call("sum.dim_IntList", self._rows) if self._rows else x

    def _weighted(self, x: Term) -> Term:
        return x if self._use["weight"] is None else x * self._given("weight")

    def _as_promised(self, made: list[Term | None]) -> list[Any]:
        """Results in their element types; torch promises them in row-major order."""
        pairs = zip(made, self._use.results, strict=True)
        return [None if x is None else self._in_order(x.to(promise.dtype)) for x, promise in pairs]

    def _in_order(self, x: Term) -> fx.Node:
        return x.call("clone.default", memory_format=torch.contiguous_format).node


# -- batch norm ------------------------------------------------------------------------------------


def fixed_batch_norm(use: Use) -> list[PaddedDims]:
    """Batch norm with statistics that are given."""
    found, *others = _normalized(use, "input", ("weight", "bias", "running_mean", "running_var"))
    # Statistics that are given are not given back: torch promises empty results.
    return [found, *[{}] * len(others)]


def _normalized(use: Use, name: str, vectors: tuple[str, ...]) -> list[PaddedDims]:
    """The padded dimensions of a tensor, and of vectors with an element for each channel.

    Raises:
        MixesRows: channels are padded, and a vector is not padded as they are.
    """
    found = use.dims(name)
    channels = {0: found[1]} if 1 in found else {}
    for vector in vectors:
        if use[vector] is None:
            continue
        if use.dims(vector).keys() != channels.keys():
            raise MixesRows("it has a weight for each row of the dimension")
        if channels:
            use.unified(channels[0], use.dims(vector)[0])
    return [found, *[channels] * (len(use.results) - 1)]


def batch_norm(use: Use) -> list[PaddedDims]:
    """Batch norm with the statistics of the batch."""
    found = _normalized(use, "input", ("weight", "bias", "running_mean", "running_var"))
    if not use["training"] or not found[0]:
        return found
    use.emit = lambda e: _batch_norm(e, use, found[0])
    return found


def _over(use: Use) -> list[int]:
    return [dim for dim in range(use.rank("input")) if dim != 1]


def _channels(e: Emission, use: Use, vector: fx.Node) -> fx.Node:
    return e.along(vector, 1, use.rank("input"))


def _batch_norm(e: Emission, use: Use, dims: PaddedDims) -> list[Any]:
    rank, over = use.rank("input"), _over(use)
    promise = compat.promise(use["input"])
    # Torch may promise half precision for statistics that its kernels compute in float32.
    stats = compute_type(use.results[1].dtype)
    x = e.call("aten._to_copy.default", e[use["input"]], dtype=stats)
    count = e.count(product(use.shape("input")[dim] for dim in over), stats)
    kept = e.filled(x, dims, rank, 0, stats)
    mean = e.call("aten.div.Tensor", e.call("aten.sum.dim_IntList", kept, over), count)
    gap = e.call("aten.sub.Tensor", x, _channels(e, use, mean))
    kept = e.filled(gap, dims, rank, 0, stats)
    square = e.call("aten.mul.Tensor", kept, kept)
    var = e.call("aten.div.Tensor", e.call("aten.sum.dim_IntList", square, over), count)
    rstd = e.call("aten.rsqrt.default", e.call("aten.add.Tensor", var, use["eps"]))
    made = e.call("aten.mul.Tensor", gap, _channels(e, use, rstd))
    if use["weight"] is not None:
        made = e.call("aten.mul.Tensor", made, _channels(e, use, e[use["weight"]]))
    if use["bias"] is not None:
        made = e.call("aten.add.Tensor", made, _channels(e, use, e[use["bias"]]))
    results = [
        e.call("aten._to_copy.default", item, dtype=kind.dtype)
        for item, kind in zip((made, mean, rstd), (promise, *use.results[1:3]), strict=True)
    ]
    if len(use.results) > 3:
        less = e.call("aten.sub.Tensor", count, 1)
        unbiased = e.call("aten.div.Tensor", e.call("aten.mul.Tensor", var, count), less)
        for name, new in (("running_mean", mean), ("running_var", unbiased)):
            old = e.call("aten.mul.Tensor", e[use[name]], 1 - use["momentum"])
            new = e.call("aten.mul.Tensor", new, use["momentum"])
            new = e.call("aten.add.Tensor", old, new)
            dtype = compat.promise(use[name]).dtype
            results.append(e.call("aten._to_copy.default", new, dtype=dtype))
    return results


def batch_norm_backward(use: Use) -> list[PaddedDims]:
    """Gradients of batch norm, with the statistics of the batch or with those that are given."""
    statistics = ("save_mean", "save_invstd") if use["train"] else ("running_mean", "running_var")
    found, *channels = _normalized(use, "input", ("weight", *statistics))
    if found.keys() != use.dims("grad_out").keys():
        raise MixesRows("it works along the dimension")
    for dim, extent in found.items():
        use.unified(extent, use.dims("grad_out")[dim])
    if use["train"]:
        use.emit = lambda e: _batch_norm_backward(e, use, found)
    else:
        use.fill("grad_out", 0)
        use.fill("input", 0)
    return [
        one if wanted else {}
        for one, wanted in zip((found, *channels), use["output_mask"], strict=True)
    ]


def _batch_norm_backward(e: Emission, use: Use, dims: PaddedDims) -> list[Any]:
    rank, over = use.rank("input"), _over(use)
    stats = compute_type(compat.promise(use["save_mean"]).dtype)
    dtype = compat.promise(use["input"]).dtype
    x, grad = (
        e.filled(e.call("aten._to_copy.default", e[use[name]], dtype=stats), dims, rank, 0, stats)
        for name in ("input", "grad_out")
    )
    mean, rstd = (_channels(e, use, e[use[name]]) for name in ("save_mean", "save_invstd"))
    count = e.count(product(use.shape("input")[dim] for dim in over), stats)
    normal = e.call("aten.mul.Tensor", e.call("aten.sub.Tensor", x, mean), rstd)
    bias = e.call("aten.sum.dim_IntList", grad, over)
    weight = e.call("aten.sum.dim_IntList", e.call("aten.mul.Tensor", grad, normal), over)
    results: list[Any] = [None, None, None]
    wanted = use["output_mask"]
    if wanted[0]:
        shift = _channels(e, use, e.call("aten.div.Tensor", bias, count))
        slope = _channels(e, use, e.call("aten.div.Tensor", weight, count))
        made = e.call("aten.sub.Tensor", grad, shift)
        made = e.call("aten.sub.Tensor", made, e.call("aten.mul.Tensor", normal, slope))
        made = e.call("aten.mul.Tensor", made, rstd)
        if use["weight"] is not None:
            made = e.call("aten.mul.Tensor", made, _channels(e, use, e[use["weight"]]))
        results[0] = e.call("aten._to_copy.default", made, dtype=dtype)
    for at, made in ((1, weight), (2, bias)):
        if wanted[at]:
            kind = use.results[at].dtype
            results[at] = e.call("aten._to_copy.default", made, dtype=kind)
    return results
