"""Kernels of the random operators with keys for PyTorch: the lowerings, evaluated by NumPy.

Integers, masks and uniform numbers are the same bit by bit; results of logarithms may differ in the
last bits. Elementwise operators run their own lowerings on arrays, in blocks that stay in a cache;
the others are written out here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.lowering import registry
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.random import threefry
from pjrt_bridge.torch_interop.randomness.arrays import ArrayBuilder, array_of, value_of
from pjrt_bridge.torch_interop.randomness.transforms import one_by_one
from pjrt_bridge.torch_interop.tensors import array_over

_BLOCK = 1 << 16
"""Elements that are drawn at once: a few arrays of them fit into a cache."""


def kernel(name: str, aten: compat.OpOverload) -> Callable[..., Any]:
    """The kernel of an operator with a key for PyTorch.

    Args:
        name: such as `"rand.default"`.
        aten: the operator without the key.
    """
    draw = _WRITTEN_OUT.get(name)

    def run(key: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if key.dim():
            return one_by_one(run, key, [_of_a_row(item) for item in args], kwargs)
        raise_as_eager(aten, args, kwargs)
        promise = compat.promise_of_call(aten, args, kwargs)
        several = isinstance(promise, (tuple, list))
        promised = tuple(promise) if several else (promise,)
        with np.errstate(all="ignore"):
            if draw is None:
                found = _elementwise(name, promised, key, args, kwargs)
            else:
                found = [draw(promised[0], key, *args)]
        made = tuple(map(_in_form, found, promised))
        return made if several else made[0]

    return run


def _of_a_row(argument: Any) -> Any:
    """Sizes without that of the rows; tensors are divided later."""
    return argument[1:] if isinstance(argument, (list, tuple)) else argument


def raise_as_eager(aten: compat.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise what eager raises for an operator's numbers, and draw nothing.

    Raises:
        RuntimeError: such as for a standard deviation below 0.
    """
    if str(aten) == "aten.multinomial.default":
        # It refuses an empty tensor, which `_emptied` would give it.
        return
    arguments = aten._schema.arguments
    given = [_emptied(item.name, value) for item, value in zip(arguments, args, strict=False)]
    named = {name: _emptied(name, value) for name, value in kwargs.items()}
    if not any(isinstance(value, torch.SymInt) for value in (*given, *named.values())):
        aten(*given, **named)


def _emptied(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty(0, dtype=value.dtype, device="cpu")
    if name == "size":
        return [0]
    return min(value, 0) if name == "n" and isinstance(value, int) else value


def _elementwise(
    name: str,
    promised: Sequence[torch.Tensor],
    key: torch.Tensor,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> list[torch.Tensor]:
    lowering = registry.find_lowering(f"pjrt_bridge.{name}")
    assert lowering is not None
    shape, total = promised[0].shape, promised[0].numel()
    types = [dtypes.from_torch(item.dtype) for item in promised]
    made = [torch.empty(total, dtype=item.dtype, device="cpu") for item in promised]
    arrays = [_flat(tensor) for tensor in made]
    drawn = _key(key)
    flat = [_flat(item.expand(shape)) if isinstance(item, torch.Tensor) else item for item in args]
    # Positions beyond `NARROW` take 64 bits, which the lowering chooses by the number of elements.
    size = _BLOCK if total <= threefry.NARROW else total
    for start in range(0, total, size):
        stop = min(start + size, total)
        outputs = [TensorType((stop - start,), dtype) for dtype in types]
        context = Context(cast(Builder, ArrayBuilder(start)), outputs)
        given = [
            value_of(item[start:stop]) if isinstance(item, np.ndarray) else item for item in flat
        ]
        found = lowering(context, drawn, *given, **kwargs)
        values = (found,) if isinstance(found, Value) else found
        for array, value in zip(arrays, values, strict=True):
            assert value is not None
            array[start:stop] = array_of(value)
    return [tensor.view(shape) for tensor in made]


def _key(key: torch.Tensor) -> Value:
    return value_of(np.array(int(key), np.int64))


def _flat(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements, row-major."""
    return array_over(tensor).reshape(-1)


def _in_form(found: torch.Tensor, promised: torch.Tensor) -> torch.Tensor:
    """In the type and strides that eager gives, and in memory that PyTorch can resize."""
    same = found.dtype == promised.dtype and found.stride() == promised.stride()
    if same and found.untyped_storage().resizable():
        return found
    made = torch.empty_strided(
        promised.shape, promised.stride(), dtype=promised.dtype, device="cpu"
    )
    return made.copy_(found)


# -- operators that are not elementwise ------------------------------------------------------------


def _drawn(name: str, key: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Numbers drawn by another operator, in a shape."""
    like = torch.empty(shape, dtype=dtype, device="cpu")
    (found,) = _elementwise(name, [like], key, (like,), {})
    return found


def _randperm(promised: torch.Tensor, key: torch.Tensor, n: int) -> torch.Tensor:
    builder = cast(Builder, ArrayBuilder())
    first, second = map(array_of, threefry.words(builder, _key(key), (n,)))
    numbers = (first.astype(np.uint64) << np.uint64(32)) | second
    return torch.from_numpy(np.argsort(numbers, kind="stable"))


def _multinomial(
    promised: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    num_samples: int,
    replacement: bool = False,
) -> torch.Tensor:
    wide = weights if weights.dtype is torch.float64 else weights.float()
    if num_samples > 1 and replacement:
        sums = wide.cumsum(-1)
        reached = _drawn("rand_like.default", key, promised.shape, wide.dtype) * sums[..., -1:]
        return torch.searchsorted(sums, reached, right=True)
    arrived = wide / _drawn("exponential.default", key, wide.shape, wide.dtype)
    if num_samples == 1:
        return arrived.argmax(-1, keepdim=True)
    return arrived.sort(dim=-1, descending=True, stable=True).indices[..., :num_samples]


_WRITTEN_OUT: Mapping[str, Callable[..., torch.Tensor]] = {
    "multinomial.default": _multinomial,
    "randperm.default": _randperm,
}
