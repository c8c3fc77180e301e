"""Functions of torch that take a size as a plain integer, for which Dynamo would make a new graph.

The schema of `linspace`, say, has no symbolic number of steps: each number of steps is a graph of
its own, until Dynamo gives up. While Dynamo traces for this backend, calls with symbolic sizes are
made of functions that take symbols.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch.nn import functional
from torch.nn.modules import utils

from pjrt_bridge.torch_interop.compat.capture import (
    functions_of_shapes,
    signals,
    sized_views,
    triangles,
)
from pjrt_bridge.torch_interop.compat.capture import sized_functions as sized
from pjrt_bridge.torch_interop.compat.capture.size_arithmetic import OF_MATH
from pjrt_bridge.torch_interop.compat.capture.sized_pools import pool, tuple_of
from pjrt_bridge.torch_interop.compat.promises.values import hint, is_dense, storage_identity

_aten = torch.ops.aten

_POOLS: tuple[
    tuple[str, Callable[..., torch.Tensor], tuple[Callable[..., Any], ...], dict[str, Any]], ...
] = (
    (
        "max",
        torch.amax,
        (torch.max_pool1d, torch.max_pool2d, torch.max_pool3d),
        {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False},
    ),
    (
        "avg",
        torch.mean,
        (_aten.avg_pool1d.default, _aten.avg_pool2d.default, _aten.avg_pool3d.default),
        {"padding": 0, "ceil_mode": False, "count_include_pad": True, "divisor_override": None},
    ),
)
"""Kinds of pooling: of all of one dimension, and with windows of fixed sizes, by dimensions, and
their further arguments."""


def _functions() -> dict[Any, Callable[..., Any]]:
    """By torch's function, the one that is traced instead."""
    return {
        torch.as_tensor: sized.as_tensor,
        torch.linspace: sized.linspace,
        torch.logspace: sized.logspace,
        torch.fft.fftfreq: sized.fftfreq,
        torch.fft.rfftfreq: sized.rfftfreq,
        torch.hamming_window: sized.hamming_window,
        torch.hann_window: sized.hann_window,
        torch.blackman_window: sized.blackman_window,
        torch.bartlett_window: sized.bartlett_window,
        torch.kaiser_window: sized.kaiser_window,
        functional.one_hot: sized.one_hot,
        torch.histc: sized.histc,
        torch.tril_indices: triangles.tril_indices,
        torch.triu_indices: triangles.triu_indices,
        functional.affine_grid: sized.affine_grid,
        **{
            getattr(functional, f"{kind}_pool{dims}d"): pool(
                dims,
                getattr(functional, f"adaptive_{kind}_pool{dims}d"),
                along,
                otherwise[dims - 1],
                defaults,
            )
            for kind, along, otherwise, defaults in _POOLS
            for dims in (1, 2, 3)
        },
        **{
            made: tuple_of(count)
            for count, made in enumerate(
                (utils._single, utils._pair, utils._triple, utils._quadruple), 1
            )
        },
        functional.adaptive_avg_pool1d: sized.adaptive_avg_pool1d,
        torch.diag: sized_views.diag,
        torch.diagonal: sized_views.diagonal,
        torch.diag_embed: sized_views.diag_embed,
        torch.Tensor.unfold: sized_views.unfold,
        **OF_MATH,
    }


_NOT_LOWERED = frozenset(
    (
        *(torch.fft.fftfreq, torch.fft.rfftfreq, torch.blackman_window, torch.bartlett_window),
        *(torch.hamming_window, torch.hann_window, torch.kaiser_window),
    )
)
"""Functions whose operators have no lowering: they are traced otherwise for any size."""

_UNCHECKED = frozenset(
    (torch.istft,)
    if DispatchKey.CompositeImplicitAutograd in _aten.one_hot.default.py_kernels
    else (torch.istft, functional.one_hot)
)
"""Functions that torch (`one_hot`: 2.11) traces without their checks of data."""

_WITHOUT_GRADIENTS = frozenset((torch.vander, torch.linalg.vander))
"""Functions that write over what their gradients need: AOTAutograd cannot trace them (2.13)."""

_OF_SIZES_OF_ONE = frozenset((functional.affine_grid,))
"""Functions that AOTAutograd cannot trace where a size is one (2.13)."""

_OF_SHAPES: dict[Any, Callable[..., Any]] = {
    torch.kron: functions_of_shapes.kron,
    torch._C._nn.pad_sequence: functions_of_shapes.pad_sequence,
    torch.max_pool1d: functions_of_shapes.max_pool1d,
    functional.max_pool1d: functions_of_shapes.max_pool1d,
    torch.take_along_dim: functions_of_shapes.take_along_dim,
    torch.gradient: functions_of_shapes.gradient,
    torch.istft: signals.istft,
    torch.vander: functions_of_shapes.vander,
    torch.linalg.vander: functions_of_shapes.linalg_vander,
    torch.tensor_split: functions_of_shapes.tensor_split,
    torch.split: functions_of_shapes.split,
}
"""Those whose traces in torch hold for the sizes of their tensors alone."""

_BY_STRIDES = frozenset((torch.Tensor.unfold,))
"""Views that are made by the strides of their tensor: AOTAutograd may take them of a dense copy."""

_METHODS = {
    "kron": torch.kron,
    "diag": torch.diag,
    "diag_embed": torch.diag_embed,
    "diagonal": torch.diagonal,
    "histc": torch.histc,
    "istft": torch.istft,
    "take_along_dim": torch.take_along_dim,
    "tensor_split": torch.tensor_split,
    "split": torch.split,
    "unfold": torch.Tensor.unfold,
}
"""Methods of tensors, by name, and the functions that they are."""


def trace_symbolic_sizes(is_for_us: Callable[[Any], bool]) -> None:
    """Have Dynamo trace other functions where sizes are symbols.

    Args:
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    functions = _functions()
    # Windows that are symbols come before shapes.
    for function, instead in (*_OF_SHAPES.items(), *functions.items()):
        _trace_function(function, instead, is_for_us)
    _trace_methods({**_OF_SHAPES, **functions}, is_for_us)
    _trace_indices(is_for_us)


def _trace_function(
    function: Any, instead: Callable[..., Any], is_for_us: Callable[[Any], bool]
) -> None:
    fits = fits_symbols(function, instead)

    def traced(tx: Any, args: Any, kwargs: Any) -> Any:
        return inlined(tx, instead, args, kwargs) if fits(args, kwargs) else None

    trace_calls(function, traced, is_for_us)


def trace_calls(
    function: Any, traced: Callable[[Any, Any, Any], Any], is_for_us: Callable[[Any], bool]
) -> None:
    """Have Dynamo trace the calls of a function of torch in another way.

    Args:
        function: as Dynamo knows it.
        traced: gives the result for a translator, positional and keyword arguments; None where
            the call is to be traced as before.
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    handlers: Any = TorchInGraphFunctionVariable._get_handlers()
    before = handlers.get(function)

    def handle(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        found = traced(tx, args, kwargs) if is_for_us(tx) else None
        if found is not None:
            return found
        return None if before is None else before(self, tx, *args, **kwargs)

    handlers[function] = handle


def _trace_methods(
    functions: dict[Any, Callable[..., Any]], is_for_us: Callable[[Any], bool]
) -> None:
    before = TensorVariable.call_method
    known = {
        name: (functions[function], fits_symbols(function, functions[function]))
        for name, function in _METHODS.items()
    }

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in known and is_for_us(tx):
            instead, fits = known[name]
            if fits((self, *args), kwargs):
                return inlined(tx, instead, (self, *args), kwargs)
        return before(self, tx, name, args, kwargs)

    TensorVariable.call_method = call_method  # type: ignore[method-assign]


def _trace_indices(is_for_us: Callable[[Any], bool]) -> None:
    """Have numbers among indices stay symbols: Dynamo, or torch, would take their values."""
    get, put = BuiltinVariable._handle_insert_op_in_graph, TensorVariable.method___setitem__

    def _handle_insert_op_in_graph(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn is operator.getitem and is_for_us(tx) and _has_numbers(args):
            return inlined(tx, sized.getitem, args, kwargs)
        return get(self, tx, args, kwargs)

    def method___setitem__(self: Any, tx: Any, key: Any, value: Any) -> Any:
        if is_for_us(tx) and _has_numbers((self, key)):
            return inlined(tx, sized.setitem, (self, key, value), {})
        if is_for_us(tx) and _writes_rows(self, key.realize(), value.realize()):
            return inlined(tx, sized.write_selected, (self, key, value), {})
        return put(self, tx, key, value)

    BuiltinVariable._handle_insert_op_in_graph = (  # type: ignore[method-assign]
        _handle_insert_op_in_graph
    )
    TensorVariable.method___setitem__ = method___setitem__  # type: ignore[method-assign]


def _has_numbers(args: Sequence[Any]) -> bool:
    """Whether a tensor is indexed by symbolic numbers, or lists of them, with or without others."""
    x, key = (item.realize() for item in args)
    if not isinstance(x, TensorVariable):
        return False
    items = [item.realize() for item in key.items] if isinstance(key, BaseListVariable) else [key]
    lists = [item for item in items if isinstance(item, BaseListVariable)]
    return any(map(_has_symbols, items)) and not any(map(_has_fractions, lists))


def _has_fractions(value: Any) -> bool:
    """Whether a list holds symbolic numbers that are not whole."""
    if isinstance(value, BaseListVariable):
        return any(map(_has_fractions, value.items))
    return isinstance(value, SymNodeVariable) and not issubclass(value.python_type(), int)


def _writes_rows(x: Any, mask: Any, rows: Any) -> bool:
    """Whether tensors are written where a mask is true: a row for each, or one for all.

    AOTAutograd cannot trace the gradient of the operator: its size depends on data.
    """
    if not isinstance(mask, TensorVariable) or not isinstance(rows, TensorVariable):
        return False
    several = (x, mask, rows)
    target, chosen, given = (item.as_proxy().node.meta["example_value"] for item in several)
    if chosen.dtype != torch.bool or not 0 < chosen.dim() <= target.dim():
        return False
    whole, masked, sizes = (tuple(map(hint, item.shape)) for item in (target, chosen, given))
    first, rest = whole[: len(masked)], whole[len(masked) :]
    own = sizes[len(sizes) - len(rest) :] if len(sizes) > len(rest) else sizes
    return (
        given.dtype == target.dtype
        and masked == first
        and len(sizes) <= len(rest) + 1
        and all(
            size in (1, most) for size, most in zip(reversed(own), reversed(rest), strict=False)
        )
    )


def inlined(tx: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What Dynamo's translator makes of a call of a Python function."""
    return tx.inline_user_function_return(VariableTracker.build(tx, function), args, kwargs)


def fits_symbols(function: Any, instead: Callable[..., Any]) -> Callable[[Any, Any], bool]:
    """Whether a call is traced otherwise: where sizes are symbols, and what is traced can do it."""
    signature = inspect.signature(instead)
    has_symbols = has_symbolic_shape if instead in _OF_SHAPES.values() else _has_symbols
    always = function in _NOT_LOWERED | _UNCHECKED | _WITHOUT_GRADIENTS

    def fits(args: Any, kwargs: Any) -> bool:
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            return False
        if function in _BY_STRIDES and not _is_of_dense_memory(args[0]):
            return False
        given = (*args, *kwargs.values())
        return (
            always
            or any(map(has_symbols, given))
            or (function in _OF_SIZES_OF_ONE and any(map(_has_one, given)))
        )

    return fits


def _has_one(value: Any) -> bool:
    """Whether an argument of a call that is traced is a list which holds the number one."""
    value = value.realize()
    return isinstance(value, BaseListVariable) and any(
        item.is_python_constant() and item.as_python_constant() == 1
        for item in map(VariableTracker.realize, value.items)
    )


def _is_of_dense_memory(value: Any) -> bool:
    """Whether a tensor that is traced lies in no argument of the graph which has gaps.

    A graph that writes into an argument begins with a copy of it, which has the argument's strides
    where that is dense.
    """
    node = value.realize().as_proxy().node
    memory = storage_identity(node.meta["example_value"])
    arguments = (item.meta.get("example_value") for item in node.graph.find_nodes(op="placeholder"))
    return all(
        is_dense(argument)
        for argument in arguments
        if isinstance(argument, torch.Tensor) and storage_identity(argument) == memory
    )


def _has_symbols(value: Any) -> bool:
    """Whether an argument of a call that is traced is a symbolic size, or holds one."""
    if isinstance(value, BaseListVariable):
        return any(map(_has_symbols, value.items))
    return isinstance(value, SymNodeVariable)


def has_symbolic_shape(value: Any) -> bool:
    """Whether an argument is a tensor with symbolic sizes, or holds one."""
    if isinstance(value, BaseListVariable):
        return any(map(has_symbolic_shape, value.items))
    if not isinstance(value, TensorVariable):
        return False
    return any(isinstance(size, torch.SymInt) for size in shape_of(value))


def shape_of(tensor: Any) -> tuple[int | torch.SymInt, ...]:
    """The shape of a tensor that is traced."""
    return tuple(tensor.as_proxy().node.meta["example_value"].shape)
