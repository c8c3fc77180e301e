"""Convolutions by oneDNN, as PyTorch calls it, forward and backward.

In a graph with several of them data has channels last, for which oneDNN is fast, and which XLA
keeps through the elementwise operations between two convolutions. Depthwise ones are a kernel of
the plugin's package (`depthwise_calls`), or sums of shifted arrays (`depthwise`) where these were
not measured to be slower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pjrt_bridge.stablehlo import Order, TensorType, Value, inverse_order, memory_order
from pjrt_bridge.torch_interop.lowering.api import Context
from pjrt_bridge_cpu.aten import subpixels
from pjrt_bridge_cpu.aten.calls import Cut, KernelCall, Load
from pjrt_bridge_cpu.aten.operators import CONVOLUTION, CONVOLUTION_BACKWARD, ONEDNN_CONVOLUTION
from pjrt_bridge_cpu.aten.products import linear
from pjrt_bridge_cpu.aten.rules import BFLOAT16, FLOAT32, KernelRule, UsableKernels, grain, only
from pjrt_bridge_cpu.depthwise import is_depthwise
from pjrt_bridge_cpu.depthwise_calls import CalledDepthwise
from pjrt_bridge_cpu.small_convolutions import SmallConvolutions

LEAST = 100_000
"""Multiplications from which on it is worth a call."""


def convolution(
    c: Context,
    use: UsableKernels,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *backend_flags: bool,
) -> Value | None:
    """`aten.convolution` as it is."""
    alike = () if bias is None else (bias,)
    window_of = (stride, padding, dilation, output_padding)
    if transposed and subpixels.is_flipped(weight, *window_of, x.shape[2:]):
        padding = subpixels.flipped_padding(weight, padding, dilation)
        weight, transposed = subpixels.flipped(c.b, weight, groups), False
    if not _takes(x, weight, *alike) or not c.output.size or _is_own(c, x, weight, groups):
        return None
    if not transposed and _is_small(c, x, weight):
        return None
    window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if not transposed:
        return _plain(c, use, {"self": x, "weight": weight, "bias": bias, **window}, c.output)
    if subpixels.fits(weight, stride, padding, dilation, output_padding, groups):
        arguments, result = subpixels.plain(c.b, x, weight, bias, stride)
        channels = _plain(c, use, arguments, result)
        if channels is not None:
            return subpixels.interleaved(c.b, channels, c.output, stride, padding)
    more = {"transposed": True, "output_padding": output_padding}
    load = _load("convolution", x, weight, groups, _work(x.shape, weight), transposed)
    arguments = {"input": x, "weight": weight, "bias": bias, **window, **more}
    return _call(c, use, arguments, c.output, load)


def _plain(
    c: Context, use: UsableKernels, arguments: Mapping[str, Any], y: TensorType
) -> Value | None:
    """A convolution that is not transposed, of the arguments of oneDNN's operator."""
    x, weight, groups = arguments["self"], arguments["weight"], arguments["groups"]
    load = _load("convolution", x, weight, groups, _work(y.shape, weight), transposed=False)
    is_whole = set(arguments["stride"]) == {1} and not any(arguments["padding"]) and groups == 1
    if not is_whole or not _is_product(c, x, weight):
        return _call(c, use, arguments, y, load)
    if not _pays(use, load, x, weight, groups):
        return None
    return _product(c, use, x, weight, arguments["bias"])


def _pays(use: UsableKernels, load: Load, x: Value, weight: Value, groups: int) -> bool:
    """Whether a call has enough to do, and was not measured to be slower than XLA's own code."""
    unmeasured = not is_depthwise(x.shape[1], weight, groups)
    return load.size >= LEAST and use.pays(load, x.dtype, unmeasured=unmeasured)


def _call(
    c: Context, use: UsableKernels, arguments: Mapping[str, Any], y: TensorType, load: Load
) -> Value | None:
    """The call of a convolution, where it is worth one."""
    transposed = "transposed" in arguments
    # On one thread `aten::convolution` uses BLAS for small kernels; this operator is always
    # oneDNN's.
    operator, data = (CONVOLUTION, "input") if transposed else (ONEDNN_CONVOLUTION, "self")
    x, weight, groups = arguments[data], arguments["weight"], arguments["groups"]
    if not _pays(use, load, x, weight, groups):
        return None
    if _is_cut_by_batch(x, weight, groups):
        cut = Cut(grain(load.size, x.shape[0]), {"input": 0, "self": 0}, (0,))
    else:
        operands = {"weight": int(transposed), "bias": 0}
        cut = Cut(max(16, grain(load.size, y.shape[1])), operands, (1,))
    call = KernelCall(
        operator,
        arguments,
        [y],
        returns=(0,),
        orders={data: _order(c, x)},
        result_orders=[_order(c, x)],
        cut=cut,
        load=load,
    )
    return only(use(c.b, call, x.dtype))


def _is_product(c: Context, x: Value, weight: Value) -> bool:
    """Whether a kernel of one place multiplies rows of channels, in bfloat16.

    A product is written where the result belongs. In float32 oneDNN's convolution is faster by more
    than the copy takes.
    """
    last = channels_last(x.rank)
    places = math.prod(weight.shape[2:])
    return x.dtype == BFLOAT16 and places == 1 and last[-1] == 1 and _order(c, x) == last


def _product(
    c: Context, use: UsableKernels, x: Value, weight: Value, bias: Value | None
) -> Value | None:
    """A convolution with a kernel of one place as a product of its rows and the weights."""
    b, last = c.b, channels_last(x.rank)
    places = b.reshape(b.transpose(x, last), (x.size // x.shape[1], x.shape[1]))
    call = linear(places, b.reshape(weight, weight.shape[:2]), bias)
    found = use(b, call, x.dtype)
    if found is None:
        return None
    shape = (*(x.shape[dim] for dim in last[:-1]), weight.shape[0])
    return b.transpose(b.reshape(found[0], shape), inverse_order(last))


def convolution_backward(
    c: Context,
    use: UsableKernels,
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...] | None:
    """`aten.convolution_backward`, a call for each gradient that is asked for."""
    work = _work(x.shape if transposed else grad.shape, weight)
    if not _takes(x, weight, grad) or not grad.size or work < LEAST:
        return None
    if _is_own(c, x, weight, groups):
        return None
    unmeasured = not is_depthwise(x.shape[1], weight, groups)
    last = _order(c, x)
    arguments = {
        "grad_output": grad,
        "input": x,
        "weight": weight,
        "bias_sizes": None,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "transposed": transposed,
        "output_padding": output_padding,
        "groups": groups,
    }
    # Per gradient: of which argument, its order, and the dimensions that it can be cut along.
    inner, outer = (0, 1) if transposed else (1, 0)
    by_batch = {"grad_output": 0, "input": 0}
    ways: list[tuple[Value, Order, Mapping[str, int], int]] = [
        (x, last, by_batch, 0)
        if _is_cut_by_batch(x, weight, groups)
        else (x, last, {"input": 1, "weight": inner}, 1),
        (weight, tuple(range(weight.rank)), {"grad_output": 1, "weight": outer}, outer),
    ]
    found: list[Value | None] = [None, None, None]
    of = "data", "weight"
    for index, (value, order, operands, dim) in enumerate(ways):
        if not output_mask[index]:
            continue
        load = _load(f"convolution backward to {of[index]}", x, weight, groups, work, transposed)
        if not use.pays(load, x.dtype, unmeasured=unmeasured):
            return None
        whole = index == 1 and groups > 1
        call = KernelCall(
            CONVOLUTION_BACKWARD,
            {**arguments, "output_mask": [place == index for place in range(3)]},
            [value.type],
            returns=[0 if place == index else None for place in range(3)],
            orders={"grad_output": last, "input": last},
            result_orders=[order],
            cut=None if whole else Cut(grain(work, value.shape[dim]), operands, (dim,)),
            load=load,
        )
        results = use(c.b, call, x.dtype)
        if results is None:
            return None
        found[index] = results[0]
    if output_mask[2]:
        found[2] = c.reduce("sum", c.widen(grad), (0, *range(2, grad.rank)))
    return c.promised(*found)


def _is_own(c: Context, x: Value, weight: Value, groups: int) -> bool:
    """Whether the plugin's package has a kernel of its own for a convolution."""
    kernels = c.kernels
    return isinstance(kernels, CalledDepthwise) and kernels.convolves(x.shape[1], weight, groups)


def _is_small(c: Context, x: Value, weight: Value) -> bool:
    """The same for a convolution that is small."""
    kernels, work = c.kernels, _work(c.output.shape, weight)
    return isinstance(kernels, SmallConvolutions) and kernels.convolves_small(x, weight, work)


def channels_last(rank: int) -> Order:
    """The order of (batch, channels, *spatial) data; PyTorch knows none for one dimension."""
    return (0, 1, 2) if rank == 3 else (0, *range(2, rank), 1)


def _order(c: Context, x: Value) -> Order:
    """The order of data in memory: channels last, or row-major for a single convolution.

    XLA's compiler copies from one order to another element by element, so a graph keeps one.
    """
    last = channels_last(x.rank)
    return last if c.same_operator_count() > 1 or memory_order(x) == last else tuple(range(x.rank))


def _is_cut_by_batch(x: Value, weight: Value, groups: int) -> bool:
    """Whether the parts of a call are batches, and not channels of the result.

    Each part packs all of the weights in the one case, and reads all of the data in the other.
    """
    return groups > 1 or (x.shape[0] > 1 and weight.size < x.size)


def _takes(x: Value, weight: Value, *others: Value) -> bool:
    return (
        x.dtype in (FLOAT32, BFLOAT16)
        and all(side.dtype == x.dtype for side in (weight, *others))
        and 3 <= x.rank <= 5
        and x.rank == weight.rank
        and min(*x.shape, *weight.shape) > 0
    )


def _load(kind: str, x: Value, weight: Value, groups: int, work: int, transposed: bool) -> Load:
    each = 1 < groups == x.shape[1]
    how = "depthwise " if each else "grouped " if groups > 1 else ""
    turned = "transposed " if transposed else ""
    return Load(f"{turned}{how}{x.rank - 2}-d {kind}", work)


def _work(shape: Sequence[int], weight: Value) -> int:
    """Multiplications: elements of the smaller side, times the kernel."""
    return math.prod(shape) * math.prod(weight.shape[1:])


RULES: Mapping[str, KernelRule] = {
    "aten.convolution.default": convolution,
    "aten.convolution_backward.default": convolution_backward,
}
"""By operator of a graph."""
