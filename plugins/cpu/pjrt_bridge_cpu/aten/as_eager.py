"""Operators whose results depend on how PyTorch computes them: they are PyTorch's own.

Eigenvalues of general matrices have the order in which LAPACK finds them, and vectors its phases.
In half precision, PyTorch rounds the positions of samples and the terms of an exponential at every
step, so a program that rounds once gives other numbers, sometimes those of other elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import TensorType, Value
from pjrt_bridge.torch_interop.lowering.api import Context
from pjrt_bridge_cpu.aten import operators
from pjrt_bridge_cpu.aten.calls import KernelCall
from pjrt_bridge_cpu.aten.operators import Operator
from pjrt_bridge_cpu.aten.rules import BFLOAT16, FLOAT32, KernelRule, UsableKernels, only

_HALF = (dtypes.of("float16"), BFLOAT16)
_LAPACK = (FLOAT32, *map(dtypes.of, ("float64", "complex64", "complex128")))


def eig(c: Context, use: UsableKernels, a: Value) -> tuple[Value | None, ...] | None:
    """`aten.linalg_eig`."""
    if a.dtype not in _LAPACK or not a.size:
        return None
    return _called(c, use, operators.EIG, {"self": a})


def matrix_exp(c: Context, use: UsableKernels, a: Value) -> Value | None:
    """`aten.linalg_matrix_exp` in half precision."""
    if a.dtype not in _HALF or not a.size:
        return None
    return only(_called(c, use, operators.MATRIX_EXP, {"self": a}))


def grid_sampler(
    operator: Operator,
    c: Context,
    use: UsableKernels,
    x: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Value | None:
    """`aten.grid_sampler_2d` and `grid_sampler_3d` in half precision."""
    if x.dtype not in _HALF or not (x.size and grid.size):
        return None
    arguments = {
        "input": x,
        "grid": grid,
        "interpolation_mode": interpolation_mode,
        "padding_mode": padding_mode,
        "align_corners": align_corners,
    }
    return only(_called(c, use, operator, arguments))


def grid_sampler_backward(
    operator: Operator,
    c: Context,
    use: UsableKernels,
    grad: Value,
    x: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...] | None:
    """Their gradients, of which that of the grid is always given."""
    if x.dtype not in _HALF or not (x.size and grid.size) or not all(output_mask):
        return None
    arguments = {
        "grad_output": grad,
        "input": x,
        "grid": grid,
        "interpolation_mode": interpolation_mode,
        "padding_mode": padding_mode,
        "align_corners": align_corners,
        "output_mask": output_mask,
    }
    return _called(c, use, operator, arguments)


def _called(
    c: Context, use: UsableKernels, operator: Operator, arguments: Mapping[str, object]
) -> tuple[Value, ...] | None:
    """The results of a whole call, or None where it is not usable or not all are asked for."""
    promised = [TensorType(item.shape, item.dtype) for item in c.outputs if item is not None]
    if len(promised) != operator.returns:
        return None
    first = next(item for item in arguments.values() if isinstance(item, Value))
    call = KernelCall(operator, arguments, promised, returns=tuple(range(len(promised))))
    return use(c.b, call, first.dtype)


RULES: Mapping[str, KernelRule] = {
    "aten.linalg_eig.default": eig,
    "aten.linalg_matrix_exp.default": matrix_exp,
    "aten.grid_sampler_2d.default": partial(grid_sampler, operators.GRID_SAMPLER_2D),
    "aten.grid_sampler_3d.default": partial(grid_sampler, operators.GRID_SAMPLER_3D),
    "aten.grid_sampler_2d_backward.default": partial(
        grid_sampler_backward, operators.GRID_SAMPLER_2D_BACKWARD
    ),
    "aten.grid_sampler_3d_backward.default": partial(
        grid_sampler_backward, operators.GRID_SAMPLER_3D_BACKWARD
    ),
}
"""By operator of a graph."""
