"""Whether a difference is rounding: the program is run again with noise of the size of rounding.

Each operator whose result is rounded gives a slightly other one. What these runs differ by is what
another order of operations, or another width of intermediate values, may change. Half of them take
denormal numbers for 0, as XLA does (docs/pytorch.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch._guards import active_fake_mode
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.differential.comparing import Difference, value_difference
from tests.differential.ir import Program
from tests.differential.observing import Call, Seen, observe

_RUNS = 6
_SPREADS = 6.0
_SEEDS = 12

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.float64: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex128,
}
_EXACT = (
    "aten::view", "aten::_unsafe_view", "aten::slice", "aten::select", "aten::clone",
    "aten::detach", "aten::permute", "aten::transpose", "aten::t", "aten::expand",
    "aten::unsqueeze", "aten::squeeze", "aten::as_strided", "aten::copy_", "aten::fill_",
    "aten::zero_", "aten::alias", "aten::unfold", "aten::diagonal", "aten::split", "aten::unbind",
    "aten::empty", "aten::zeros", "aten::ones", "aten::full", "aten::arange", "aten::cat",
    "aten::stack", "aten::flip", "aten::_reshape_alias", "aten::view_as_real",
    "aten::view_as_complex", "aten::_conj", "aten::_neg_view", "aten::index_select",
    "aten::gather", "aten::_to_copy", "aten::to",
    "aten::_local_scalar_dense", "aten::resize_", "aten::set_", "aten::neg",
)  # fmt: skip


_CANCELLING = tuple(
    f"aten::{name}"
    for name in (
        "native_batch_norm", "native_batch_norm_backward", "native_group_norm",
        "native_group_norm_backward", "native_layer_norm", "native_layer_norm_backward",
        "_softmax_backward_data", "_log_softmax_backward_data", "std", "std_mean", "var",
        "var_mean",
    )
)  # fmt: skip
"""They subtract within, where terms may cancel: what they are given is noisy, too.

So another way to compute them may be as far off as an argument that is rounded in its last place.
"""


_BY_RECIPROCAL = ("aten::div", "aten::div_", "aten::mean")
"""XLA multiplies by the rounded reciprocal of a constant divisor: exact quotients are rounded."""

_UNORDERED = ("aten::topk", "aten::kthvalue", "aten::median", "aten::nanmedian", "aten::mode")
"""Which of several equal values these take, and so which one has the gradient, is not defined."""


def _shifted(func: Any, shift: int) -> Any:
    """An operator that may take another one of several equal values than `func` does."""

    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        names = [argument.name for argument in func._schema.arguments][1:]
        dim = {**dict(zip(names, args, strict=False)), **kwargs}.get("dim", -1)
        if "dim" not in names or not x.dim() or not x.shape[dim]:
            return func(x, *args, **kwargs)
        other = x.flip(dim) if shift % 2 else x
        values, positions, *_ = func(other.roll(shift, dim), *args, **kwargs)
        positions = (positions - shift) % x.shape[dim]
        return values, x.shape[dim] - 1 - positions if shift % 2 else positions

    return run


_COMPLEX_PRODUCTS = tuple(
    f"aten::{name}" for name in ("addmm", "addmv", "baddbmm", "bmm", "dot", "mm", "mv", "vdot")
)
"""Kernels multiply complex numbers that are not finite by the rule of C, or part by part."""

_NOT_OF_INFINITIES = (
    "aten::gelu",
    "aten::var_mean",
    "aten::std_mean",
    "aten::_fft_",
    "aten::_scaled_dot_product_",
)
"""Kernels of these subtract infinities, or multiply them by 0, or do not, by the element type."""

_UNSET_FOR_NONE = ("aten::multi_margin_loss", "aten::multilabel_margin_loss_forward")
"""Kernels of these leave the mean over no rows as it was in memory."""


def _free_of_kernel(name: str, args: Sequence[Any], result: torch.Tensor) -> torch.Tensor | None:
    """Which elements of a result may be NaN or not, as the kernel likes; None: none.

    Some kernels of convolution multiply the zeros of the padding by the weight, others leave them
    out, by the element type, the sizes and the groups. That is seen where a weight is not finite.
    """
    if name in _UNSET_FOR_NONE and args[0].numel() == 0:
        return torch.ones_like(result, dtype=torch.bool)
    if name in _COMPLEX_PRODUCTS:
        factors = [item for item in args if isinstance(item, torch.Tensor) and item.is_complex()]
        finite = all(bool(item.isfinite().all()) for item in factors)
        return None if finite else torch.ones_like(result, dtype=torch.bool)
    if name.startswith(_NOT_OF_INFINITIES):
        finite = all(bool(item.isfinite().all()) for item in args if isinstance(item, torch.Tensor))
        return None if finite else torch.ones_like(result, dtype=torch.bool)
    if name == "aten::convolution_backward":
        finite = all(bool(item.isfinite().all()) for item in args[:3])
        return None if finite else torch.ones_like(result, dtype=torch.bool)
    if name != "aten::convolution" or bool(args[1].isfinite().all()):
        return None
    x, weight, _, stride, padding, dilation, transposed, _, groups = args
    if transposed:
        return torch.ones_like(result, dtype=torch.bool)
    around = [side for size in reversed(padding) for side in (size, size)]
    if len(padding) == 1:
        around *= x.dim() - 2
    zeros = torch.zeros(x.shape, dtype=torch.float64)
    outside = torch.nn.functional.pad(zeros, around, value=1.0)
    infinite = (~weight.isfinite()).double()
    none = [0] * (x.dim() - 2)
    found = torch.convolution(outside, infinite, None, stride, none, dilation, False, none, groups)
    return found > 0


class _Noise(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self._shift = seed

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator) or _is_traced():
            return func(*args, **kwargs)
        before = None
        name = func.name().split(".")[0]
        exact = name in _EXACT or func.is_view
        if name in _UNORDERED:
            func = _shifted(func, self._shift)
        if name in _CANCELLING:
            args = tuple(map(self._perturbed, args))
        if not exact:
            before = _widened(func, args, kwargs)
        result = func(*args, **kwargs)
        if exact:
            return result
        leaves = list(result) if isinstance(result, (tuple, list)) else [result]
        wide = list(before) if isinstance(before, (tuple, list)) else [before] * len(leaves)
        inexact = name in _BY_RECIPROCAL
        noisy = [
            self._noisy(one, other, inexact=inexact)
            for one, other in zip(leaves, wide, strict=True)
        ]
        if self._shift % 2:
            # Where one such kernel follows another, numbers would come back.
            always = self._shift % 4 == 3
            noisy = [_unlike(name, args, *pair, always) for pair in zip(leaves, noisy, strict=True)]
        for old, new in zip(leaves, noisy, strict=True):
            if new is not None:
                with suppress(RuntimeError):
                    # Expanded tensors cannot be written into.
                    old.copy_(new)
        return result

    def _perturbed(self, value: Any) -> Any:
        noisy = self._noisy(value, None)
        return value if noisy is None else noisy

    def _noisy(self, value: Any, wide: Any, *, inexact: bool = False) -> torch.Tensor | None:
        if not isinstance(value, torch.Tensor) or value.dtype not in _WIDE or not value.numel():
            return None
        if value._is_zerotensor():
            # Zeros of forward mode have no memory.
            return None
        eps = torch.finfo(value.dtype).eps
        size = eps * value.abs()
        exact = None
        if isinstance(wide, torch.Tensor) and wide.shape == value.shape:
            exact = wide.to(_WIDE[value.dtype])
            # What was made of integers alone was not computed in double precision.
            known = wide.dtype is exact.dtype or torch.equal(exact * 4, (exact * 4).round())
            if known and not inexact and torch.equal(exact, value.to(exact.dtype)):
                return None
            size = size + 2 * (exact - value).abs().nan_to_num().to(size.dtype)
        noise = torch.rand(value.shape, generator=self._generator, dtype=torch.float64) * 2 - 1
        noisy = (value + (noise * size).nan_to_num(0, 0, 0)).to(value.dtype)
        if self._shift % 2 and exact is not None:
            # XLA may not round in between, and then there is no overflow.
            noisy = torch.where(value.isinf() & exact.isfinite(), torch.nan, noisy)
        return noisy


def _is_traced() -> bool:
    """Whether operators are traced, as `linearize` does before it runs them."""
    return active_fake_mode() is not None or get_proxy_mode() is not None


def _unlike(name: str, args: Sequence[Any], old: Any, new: Any, always: bool) -> Any:
    """A result with NaN where another kernel may give it, and numbers where it may give these.

    Args:
        name: of the operator.
        args: of it.
        old: its result.
        new: with noise; None where that is the same.
        always: NaN stays NaN.
    """
    if not isinstance(old, torch.Tensor):
        return new
    free = _free_of_kernel(name, args, old)
    if free is None:
        return new
    kept = old if new is None else new
    is_complex = old.is_complex()
    if is_complex:
        free, old, kept = free[..., None], torch.view_as_real(old), torch.view_as_real(kept)
    changed = torch.where(old.isnan() & (not always), 0, torch.nan)
    other = torch.where(free, changed.to(old.dtype), kept)
    return torch.view_as_complex(other) if is_complex else other


def _widened(func: Any, args: Any, kwargs: Any) -> Any:
    """What the operator gives in double precision; None where that cannot be asked."""

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in _WIDE:
            return value.to(_WIDE[value.dtype], copy=True)
        if isinstance(value, (list, tuple)):
            return type(value)(map(wide, value))
        return value

    try:
        return func(*map(wide, args), **{key: wide(value) for key, value in kwargs.items()})
    except Exception:
        return None


def _branch(condition: Any, if_true: Any, if_false: Any, operands: Sequence[Any]) -> Any:
    """What `torch.cond` gives, operator by operator."""
    return (if_true if condition else if_false)(*operands)


@contextmanager
def _denormals(kept: bool) -> Iterator[None]:
    """Operators inside keep denormal numbers, or take them for 0."""
    torch.set_flush_denormal(not kept)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def within_scatter(
    program: Program,
    namespace: Callable[[], dict[str, Any]],
    found: Sequence[Call],
    wrong: Sequence[Difference],
) -> list[Difference]:
    """Those of the differences in distributions that other seeds explain.

    Elements that follow from each other, such as sums of more and more draws, have a mean that
    scatters more than that of as many draws.
    """
    runs = [_observed_with_seed(program, namespace, seed) for seed in range(1, 1 + _SEEDS)]

    def is_explained(item: Difference) -> bool:
        values = [_value(run[item.call], item.place) for run in runs]
        means = torch.stack([value.double().mean() for value in values])
        mean = _value(found[item.call], item.place).double().mean()
        return bool((mean - means.mean()).abs() <= _SPREADS * means.std())

    return [item for item in wrong if item.kind == "distribution" and is_explained(item)]


def _observed_with_seed(
    program: Program, namespace: Callable[[], dict[str, Any]], seed: int
) -> list[Call]:
    functions = namespace()

    def seeded(*arguments: Any) -> Any:
        torch.manual_seed(torch.initial_seed() + 1000 * seed)
        return functions["f"](*arguments)

    return observe(seeded, functions["arguments"], program)


def within_rounding(
    program: Program,
    namespace: Callable[[], dict[str, Any]],
    expected: Sequence[Call],
    found: Sequence[Call],
    wrong: Sequence[Difference],
) -> list[Difference]:
    """Those of the differences in values that noise explains."""
    runs = []
    # As for a random program: nothing is written into to see who shares memory.
    unjudged = replace(program, random=True)
    for seed in range(_RUNS):
        functions = namespace()
        # Torch cannot differentiate `cond` under such a mode, and hides what is in it.
        with mock.patch.object(torch, "cond", _branch), _Noise(seed), _denormals(seed % 2 == 0):
            runs.append(observe(functions["f"], functions["arguments"], unjudged))
    return [
        item
        for item in wrong
        if item.kind in ("value", "gradient")
        and _explained(
            _value(found[item.call], item.place),
            _value(expected[item.call], item.place),
            [_value(run[item.call], item.place) for run in runs],
        )
    ]


def _value(call: Call, place: str) -> Any:
    if place.startswith("gradient of "):
        found = call.gradients.get(place.removeprefix("gradient of "))
    else:
        places = {**call.results, **call.arguments, **call.held, **call.used}
        found = places.get(place)
    return found.value if isinstance(found, Seen) else found


def _explained(one: Any, other: Any, noisy: Sequence[Any]) -> bool:
    if isinstance(other, (float, complex)):
        dtype = torch.float64 if isinstance(other, float) else torch.complex128
        if not isinstance(one, (float, complex)):
            return False
        one, other = torch.tensor(one, dtype=dtype), torch.tensor(other, dtype=dtype)
        noisy = [
            torch.tensor(item, dtype=dtype) for item in noisy if isinstance(item, (float, complex))
        ]
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    alike = [item for item in noisy if isinstance(item, torch.Tensor) and item.shape == other.shape]
    if not alike:
        return False
    if other.dtype.is_complex:
        one, other = torch.view_as_real(one), torch.view_as_real(other)
        alike = [torch.view_as_real(item) for item in alike]
    spreads = [(item.double() - other.double()).abs() for item in alike]
    spreads = [far.masked_fill(item == other, 0) for far, item in zip(spreads, alike, strict=True)]
    spread = torch.stack(spreads).amax(0)
    # Where noise makes infinities or NaN come and go, anything may come.
    spread = spread.nan_to_num(torch.inf, posinf=torch.inf)
    spread[(other.isnan()) & torch.stack([item.isnan() for item in alike]).all(0)] = 0
    one = torch.where(spread.isinf(), other, one)
    if other.dtype in _WIDE:
        return not value_difference(one, other, _SPREADS * spread)
    far = (one.double() - other.double()).abs() > _SPREADS * spread
    return not bool(far.any())
