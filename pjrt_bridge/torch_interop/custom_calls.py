"""Operators of the user's that programs call through the plugin's FFI, instead of dividing a graph.

    @torch.library.custom_op("mylib::clip", mutates_args=())
    def clip(x: Tensor, limit: float) -> Tensor: ...

    def kernel(x, out, *, limit):
        np.clip(x, -limit, limit, out=out)

    custom_call(clip, kernel)

From then on a graph with the operator is one program. Tensors are the operands, row-major; what is
no tensor is an attribute by its name in the operator's schema. The backward of the operator is what
`register_autograd` says, as everywhere.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ExtensionUnavailable, OptionError, RegistrationError
from pjrt_bridge.extensions import FFI
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop import compat, schemas
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import Lowering, NotLowerable
from pjrt_bridge.wrong_arguments import checked

Kernel = Callable[..., None] | int
"""What `extensions.FFI.register` takes."""


@dataclass(frozen=True)
class _RegisteredCall:
    """An operator that is a custom call.

    Attributes:
        operator: the overload, such as `mylib.clip.default`.
        target: name in the plugin's registry.
        kernel: the function.
    """

    operator: str
    target: str
    kernel: Kernel


_calls: dict[str, _RegisteredCall] = {}
_numbers = itertools.count()
_lock = threading.Lock()


@checked
def custom_call(operator: Any, kernel: Kernel | None = None) -> None:
    """Lower an operator to a custom call, in every graph that is compiled from now on.

    A plugin that has no FFI, or does not accept the kernel, leaves the operator to PyTorch.

    Args:
        operator: what `torch.library.custom_op` made, an overload, or a name: `"mylib::clip"`.
        kernel: a Python function of (*operands, *results, **attributes) that fills the results,
            all of them NumPy arrays; or a C function of the type XLA_FFI_Handler, as an address
            or a ctypes function. None: the operator's own kernel in PyTorch.

    Raises:
        OptionError: torch has no such operator, or it writes to its arguments.
    """
    overload = _overload(operator)
    name = str(overload)
    if schemas.mutates(overload):
        raise OptionError(f"custom_call: {name} writes to its arguments; a custom call cannot")
    with _lock:
        # A plugin never forgets a name, so another kernel gets another one.
        target = f"torch.{name}.{next(_numbers)}"
        _calls[name] = _RegisteredCall(name, target, _own(overload) if kernel is None else kernel)


def lowering_of(name: str, client: Client) -> Lowering | None:
    """The lowering of an operator that is a custom call, None for all others."""
    call = _calls.get(name)
    if call is None:
        return None

    def lower(context: Context, *args: Any, **kwargs: Any) -> Value | Sequence[Value | None]:
        return _lower(call, client, context, args, kwargs)

    return lower


def _lower(
    call: _RegisteredCall,
    client: Client,
    context: Context,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Value | Sequence[Value | None]:
    try:
        client.extension(FFI).register(call.target, call.kernel)
    except (ExtensionUnavailable, RegistrationError) as error:
        raise NotLowerable(f"its custom call cannot be registered: {error}") from error
    operands: list[Value] = []
    attributes: dict[str, Any] = {}
    overload = compat.operator(call.operator)
    assert overload is not None
    for argument, value in schemas.bind(overload, args, kwargs).items():
        if isinstance(value, Value):
            operands.append(value)
        else:
            attributes[argument] = _attribute(argument, value)
    results = [output for output in context.outputs if output is not None]
    if len(results) != len(context.outputs):
        raise NotLowerable("a custom call gives all of its results, and torch promises a None")
    values = context.b.custom_call(
        call.target,
        operands,
        results,
        backend_config=attributes,
        api_version=4,
        operand_layouts=[_row_major(operand.rank) for operand in operands],
        result_layouts=[_row_major(result.rank) for result in results],
    )
    return values if len(values) != 1 else values[0]


def _row_major(rank: int) -> range:
    return range(rank - 1, -1, -1)


def _attribute(name: str, value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and value:
        kinds = {type(item) for item in value}
        for kind, dtype in ((int, np.int64), (float, np.float64)):
            if kinds == {kind}:
                return np.array(value, dtype)
    raise NotLowerable(f"its argument {name}={value!r} is nothing that a custom call takes")


def _overload(operator: Any) -> Any:
    found = schemas.overload(operator)
    if found is None:
        raise OptionError(
            f"custom_call: found {operator!r}, expected an operator of torch.library, or its name"
        )
    return found


# -- the operator's own kernel ---------------------------------------------------------------------


def _own(overload: Any) -> Callable[..., None]:
    names = schemas.tensor_arguments(overload)

    def kernel(*arrays: np.ndarray[Any, Any], **attributes: Any) -> None:
        operands = [_tensor(array) for array in arrays[: len(names)]]
        plain = {name: _plain(value) for name, value in attributes.items()}
        with torch.no_grad():
            made = overload(**dict(zip(names, operands, strict=True)), **plain)
        results = made if isinstance(made, (tuple, list)) else (made,)
        for array, result in zip(arrays[len(names) :], results, strict=True):
            _tensor(array).copy_(result)

    return kernel


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor over an array's memory, also of types that NumPy's own exchange lacks."""
    dtype = dtypes.from_numpy(array.dtype)
    if dtype.torch is None:
        raise TypeError(f"torch has no element type {dtype}")
    if not array.size:
        return torch.empty(array.shape, dtype=getattr(torch, dtype.torch), device="cpu")
    # The array itself may be read-only, of which torch would warn; the memory is not.
    flat = torch.frombuffer(array.base, dtype=getattr(torch, dtype.torch))
    return flat.reshape(array.shape)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
