"""Formulas over nodes of the padded graph, written as arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop.passes.padding.emission import Emission


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """The element type in which sums of an element type are computed."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class Term:
    """A tensor in a formula, broadcast as torch does.

    Args:
        e: where to emit.
        node: the tensor.
    """

    def __init__(self, e: Emission, node: fx.Node) -> None:
        self._e = e
        self.node = node

    def call(self, name: str, *args: Any, **kwargs: Any) -> Term:
        """An operator of ATen on this tensor, by its name with overload."""
        given = [item.node if isinstance(item, Term) else item for item in args]
        return Term(self._e, self._e.call(f"aten.{name}", self.node, *given, **kwargs))

    def __add__(self, other: Any) -> Term:
        return self.call("add.Tensor", other)

    def __sub__(self, other: Any) -> Term:
        return self.call("sub.Tensor", other)

    def __rsub__(self, other: Any) -> Term:
        return self.call("rsub.Scalar", other)

    def __mul__(self, other: Any) -> Term:
        return self.call("mul.Tensor", other)

    def __truediv__(self, other: Any) -> Term:
        return self.call("div.Tensor", other)

    def __and__(self, other: Any) -> Term:
        return self.call("logical_and.default", other)

    def __or__(self, other: Any) -> Term:
        return self.call("logical_or.default", other)

    def floor(self) -> Term:
        """The largest whole number that is not larger."""
        return self.call("floor.default")

    def below(self, other: Any) -> Term:
        """Whether it is less than a number or another."""
        return self.call("lt.Tensor" if isinstance(other, Term) else "lt.Scalar", other)

    def to(self, dtype: torch.dtype) -> Term:
        """In another element type."""
        return self.call("_to_copy.default", dtype=dtype)

    def where(self, one: Any, other: Any) -> Term:
        """One where it is true, and the other elsewhere; numbers are of the type of the first."""
        return Term(self._e, self._e.call("aten.where.self", self.node, one.node, other.node))

    def like(self, number: float) -> Term:
        """A number of the same element type, for all elements."""
        return self.call("full_like.default", number)
