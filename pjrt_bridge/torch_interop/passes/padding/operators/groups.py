"""Group norm with padded dimensions: in a batch, and in what is normalized over."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import MixesRows, PaddedDims, product
from pjrt_bridge.torch_interop.passes.padding.formulas import compute_type
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def group_norm(use: Use) -> list[PaddedDims]:
    """Group norm of each of a batch."""
    found = _padded(use)
    if found.keys() - {0}:
        use.emit = lambda e: _Groups(e, use, found).results()
    of_groups = {0: found[0]} if 0 in found else {}
    return [found, of_groups, of_groups]


def group_norm_backward(use: Use) -> list[PaddedDims]:
    """Its gradients; those of weight and bias are sums over the batch and all positions."""
    found, wanted = _padded(use), use["output_mask"]
    use.same(found, use.dims("grad_out"))
    if found.keys() - {0}:
        use.emit = lambda e: _Groups(e, use, found).gradients()
    elif any(wanted[1:]):
        for name in ("grad_out", "input", "mean", "rstd"):
            use.fill(name, 0)
    return [found if wanted[0] else {}, {}, {}]


def _padded(use: Use) -> PaddedDims:
    found = use.dims("input")
    if 1 in found or any(use.dims(name) for name in ("weight", "bias")):
        raise MixesRows("it works along the dimension")
    return found


class _Groups:
    """One call: its input with the channels of each group in a dimension behind that of groups."""

    def __init__(self, e: Emission, use: Use, dims: PaddedDims) -> None:
        self._e, self._use = e, use
        self._promise = compat.promise(use["input"])
        self._dtype = compute_type(self._promise.dtype)
        self._rank = use.rank("input")
        self._shape = use.shape("input")
        self._dims = {at + (at > 0): extent for at, extent in dims.items()}
        self._over = list(range(2, self._rank + 1))
        self._count = e.count(product(self._shape[1:]) // use["group"], self._dtype)

    def results(self) -> list[Any]:
        e, use = self._e, self._use
        x = self._grouped(use["input"])
        mean = self._mean(self._kept(x))
        gap = e.call("aten.sub.Tensor", x, mean)
        kept = self._kept(gap)
        var = self._mean(e.call("aten.mul.Tensor", kept, kept))
        rstd = e.call("aten.rsqrt.default", e.call("aten.add.Tensor", var, use["eps"]))
        made = self._weighted(e.call("aten.mul.Tensor", gap, rstd))
        if use["bias"] is not None:
            made = e.call("aten.add.Tensor", made, self._of_channels(use["bias"]))
        return [self._result(made), *map(self._statistic, (mean, rstd))]

    def gradients(self) -> list[Any]:
        e, use = self._e, self._use
        mean, rstd = (self._of_groups(use[name]) for name in ("mean", "rstd"))
        gap = e.call("aten.sub.Tensor", self._grouped(use["input"]), mean)
        normal = self._kept(e.call("aten.mul.Tensor", gap, rstd))
        grad = self._kept(self._grouped(use["grad_out"]))
        both = e.call("aten.mul.Tensor", grad, normal)
        made: list[Any] = [None, None, None]
        if use["output_mask"][0]:
            shift = self._mean(self._weighted(grad))
            slope = e.call("aten.mul.Tensor", normal, self._mean(self._weighted(both)))
            found = e.call("aten.sub.Tensor", self._weighted(grad), shift)
            found = e.call("aten.sub.Tensor", found, slope)
            made[0] = self._result(e.call("aten.mul.Tensor", found, rstd))
        for at, summed in ((1, both), (2, grad)):
            if use["output_mask"][at]:
                total = e.call("aten.sum.dim_IntList", summed, [0, *self._over[1:]])
                total = e.call("aten.view.default", total, [e.size(self._shape[1])])
                dtype = use.results[at].dtype
                made[at] = e.call("aten._to_copy.default", total, dtype=dtype)
        return made

    # -- parts -------------------------------------------------------------------------------------

    def _grouped(self, node: fx.Node) -> fx.Node:
        groups = self._use["group"]
        batch, channels, *positions = self._shape
        sizes = [batch, groups, channels // groups, *positions]
        x = self._e.call("aten._to_copy.default", self._e[node], dtype=self._dtype)
        x = self._e.call("aten.clone.default", x, memory_format=torch.contiguous_format)
        return self._e.call("aten.view.default", x, [self._e.size(size) for size in sizes])

    def _kept(self, made: fx.Node) -> fx.Node:
        return self._e.filled(made, self._dims, self._rank + 1, 0, self._dtype)

    def _mean(self, made: fx.Node) -> fx.Node:
        total = self._e.call("aten.sum.dim_IntList", made, self._over, True)
        return self._e.call("aten.div.Tensor", total, self._count)

    def _of_channels(self, node: fx.Node) -> fx.Node:
        groups = self._use["group"]
        sizes = [1, groups, self._shape[1] // groups, *[1] * (self._rank - 2)]
        made = self._e.call("aten._to_copy.default", self._e[node], dtype=self._dtype)
        return self._e.call("aten.view.default", made, [self._e.size(size) for size in sizes])

    def _of_groups(self, node: fx.Node) -> fx.Node:
        made = self._e.call("aten._to_copy.default", self._e[node], dtype=self._dtype)
        for at in self._over:
            made = self._e.call("aten.unsqueeze.default", made, at)
        return made

    def _weighted(self, made: fx.Node) -> fx.Node:
        weight = self._use["weight"]
        if weight is None:
            return made
        return self._e.call("aten.mul.Tensor", made, self._of_channels(weight))

    def _result(self, made: fx.Node) -> fx.Node:
        sizes = [self._e.size(size) for size in self._shape]
        made = self._e.call("aten.view.default", made, sizes)
        return self._e.call("aten._to_copy.default", made, dtype=self._promise.dtype)

    def _statistic(self, made: fx.Node) -> fx.Node:
        batch, groups = self._e.size(self._shape[0]), self._use["group"]
        made = self._e.call("aten.view.default", made, [batch, groups])
        return self._e.call("aten._to_copy.default", made, dtype=self._use.results[1].dtype)
