"""Counts of multiplications, of operators that take more of them than their results have elements.

A count is an expression of sizes. Counts are for estimates, and leave out what is small beside the
rest.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.extents import Size


class _CountedCall:
    """An operator's call: shapes of its arguments, by name, and of its result."""

    def __init__(self, node: fx.Node) -> None:
        self._node = node
        self._arguments = compat.bound_arguments(node)

    @property
    def result(self) -> list[Size]:
        """The shape of a result that is a tensor."""
        return self._shape(self._node)

    def __getitem__(self, name: str) -> list[Size]:
        return self._shape(self._arguments[name])

    def _shape(self, node: fx.Node) -> list[Size]:
        return [compat.expression(size) for size in compat.promise(node).shape]

    def is_true(self, name: str) -> bool:
        """Whether an argument that is true or false is true."""
        return bool(self._arguments[name])


def multiplications(node: fx.Node) -> Size | None:
    """The multiplications of an operator's call; None where they are not counted."""
    name = compat.operator_name(node.target) or ""
    found = _COUNTED.get(name.rpartition(".")[0])
    return None if found is None else found(_CountedCall(node))


_Count = Callable[[_CountedCall], Size]


def _product(name: str) -> _Count:
    """A product, of which an argument's last dimension is summed over."""
    return lambda call: prod(call.result) * call[name][-1]


def _products(left: str, right: str) -> _Count:
    """Products, each row of the left argument with each column of the right one."""
    return lambda call: prod(call[left]) * call[right][-1]


def _attention(products: int) -> _Count:
    """Attention that takes so many products of queries with keys."""
    return lambda call: products * prod(call["query"]) * call["key"][-2]


def _convolution(call: _CountedCall) -> Size:
    places = call["input"] if call.is_true("transposed") else call.result
    return prod(places) * prod(call["weight"][1:])


def _convolution_backward(call: _CountedCall) -> Size:
    places = call["input" if call.is_true("transposed") else "grad_output"]
    return 2 * prod(places) * prod(call["weight"][1:])


def _trilinear(call: _CountedCall) -> Size:
    return prod(call["i1"][:-1]) * prod(call["i2"])


def _distances_backward(call: _CountedCall) -> Size:
    return prod(call["grad"]) * call["x1"][-1]


def _bags(call: _CountedCall) -> Size:
    return prod(call["indices"]) * call["weight"][-1]


def _recurrence(call: _CountedCall) -> Size:
    """Each of so many rows with the weights of the state."""
    *rows, _ = call["given"]
    return prod(rows) * prod(call["weight"])


def _recurrence_backward(call: _CountedCall) -> Size:
    *rows, _ = call["outputs"]
    return 2 * prod(rows) * prod(call["weight"])


def _factors(name: str, times: int = 1) -> _Count:
    """Factors of matrices, and what is made of them."""
    return lambda call: times * prod(call[name]) * call[name][-1]


def _solutions(matrices: str, sides: str) -> _Count:
    """Equations with matrices that are factors."""
    return lambda call: prod(call[sides]) * call[matrices][-1]


def _solutions_by_factors(call: _CountedCall) -> Size:
    return (prod(call["A"]) + prod(call["B"])) * call["A"][-1]


_ITERATIONS = 10
"""About how many products eigenvalues, singular values and exponentials take."""

_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"
_GROUPED = "transformers.grouped_mm_fallback"

_COUNTED: dict[str, _Count] = {
    "aten.mm": _product("self"),
    "aten.bmm": _product("self"),
    "aten.addmm": _product("mat1"),
    "aten.baddbmm": _product("batch1"),
    "aten.addbmm": _products("batch1", "batch2"),
    "aten._grouped_mm": _products("self", "mat2"),
    _GROUPED: _products("input", "weight"),
    f"{_GROUPED}_backward": _products("input", "weight"),
    "aten.mv": _product("self"),
    "aten.addmv": _product("mat"),
    "aten._trilinear": _trilinear,
    "aten.convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    _ATTENTION: _attention(2),
    f"{_ATTENTION}_backward": _attention(5),
    "aten._cdist_forward": _product("x1"),
    "aten._cdist_backward": _distances_backward,
    "aten._embedding_bag": _bags,
    "pjrt_bridge.recurrence": _recurrence,
    "pjrt_bridge.recurrence_backward": _recurrence_backward,
    "aten.linalg_cholesky_ex": _factors("self"),
    "aten.cholesky": _factors("self"),
    "aten.cholesky_inverse": _factors("self"),
    "aten.linalg_inv_ex": _factors("A"),
    "aten._linalg_det": _factors("A"),
    "aten._linalg_slogdet": _factors("A"),
    "aten.linalg_lu_factor_ex": _factors("A"),
    "aten.linalg_qr": _factors("A", 2),
    "aten._linalg_eigh": _factors("A", _ITERATIONS),
    "aten._linalg_svd": _factors("A", _ITERATIONS),
    "aten.linalg_pinv": _factors("self", _ITERATIONS),
    "aten.linalg_matrix_exp": _factors("self", _ITERATIONS),
    "aten._linalg_solve_ex": _solutions_by_factors,
    "aten.linalg_lu_solve": _solutions("LU", "B"),
    "aten.linalg_solve_triangular": _solutions("self", "B"),
    "aten.triangular_solve": _solutions("A", "self"),
    "aten.cholesky_solve": _solutions("input2", "self"),
}
"""By operator."""
