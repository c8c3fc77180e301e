"""Convolutions of data that lies in memory in another order than (batch, channels, *spatial).

Where some convolutions of a graph are calls of PyTorch's, which give data with channels last, the
others are stated on data in the same order: XLA's compiler would copy it before and after each, and
what is saved for gradients would be copied again. A kernel of one place is a product of rows of
channels, forward and for both gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, Order, Value, inverse_order, memory_order
from pjrt_bridge.stablehlo.kernel_attributes import Convolution
from pjrt_bridge.stablehlo.kernels import Kernels

_DATA = (("NC", "OI", "NC"), ("NC", "IO", "NC"))
"""First letters of convolutions whose left side and result are data: forward, and the gradient of
the data."""

_GRADIENT = ("CN", "IO", "NC")
"""Those of the gradient of the weight, whose sides both are data."""


class ConvolutionsInOrder(Kernels):
    """Convolutions of data that has channels last in memory."""

    def convolution(
        self,
        b: Builder,
        x: Value,
        weight: Value,
        how: Convolution,
        *,
        accumulator: DType,
        dtype: DType,
    ) -> Value:
        """See `Kernels.convolution`."""
        letters = tuple(part[:2] for part in how.dimension_numbers)
        is_gradient = letters == _GRADIENT
        sides = (x, weight) if is_gradient else (x,)
        last = _channels_last(x.rank)
        has_order = is_gradient or letters in _DATA
        if not has_order or x.rank < 3 or last not in map(memory_order, sides):
            return super().convolution(b, x, weight, how, accumulator=accumulator, dtype=dtype)
        if _is_product(x, weight, how):
            return self._product(b, x, weight, letters, accumulator, dtype)
        left, right, result = (_turned(part, last) for part in how.dimension_numbers)
        if is_gradient:
            weight, result = b.transpose(weight, last), how.dimension_numbers[2]
        else:
            right = how.dimension_numbers[1]
        turned = replace(how, dimension_numbers=(left, right, result))
        data = b.transpose(x, last)
        y = super().convolution(b, data, weight, turned, accumulator=accumulator, dtype=dtype)
        return y if is_gradient else b.transpose(y, inverse_order(last))

    def _product(
        self,
        b: Builder,
        x: Value,
        weight: Value,
        letters: tuple[str, ...],
        accumulator: DType,
        dtype: DType,
    ) -> Value:
        """A convolution with a kernel of one place."""
        last = _channels_last(x.rank)

        def rows(data: Value) -> Value:
            """A row of channels for each place."""
            channels = data.shape[1]
            return b.reshape(b.transpose(data, last), (data.size // channels, channels))

        if letters == _GRADIENT:
            columns = b.transpose(rows(x), (1, 0))
            y = self.product(b, columns, rows(weight), accumulator=accumulator, dtype=dtype)
            return b.reshape(y, (*y.shape, *[1] * (x.rank - 2)))
        matrix = b.reshape(weight, weight.shape[:2])
        if letters[1] == "OI":
            matrix = b.transpose(matrix, (1, 0))
        y = self.product(b, rows(x), matrix, accumulator=accumulator, dtype=dtype)
        shape = (x.shape[0], *x.shape[2:], y.shape[1])
        return b.transpose(b.reshape(y, shape), inverse_order(last))


def _channels_last(rank: int) -> Order:
    """The order of (batch, channels, *spatial) data; also of one spatial dimension."""
    return (0, *range(2, rank), 1)


def _is_product(x: Value, weight: Value, how: Convolution) -> bool:
    """Whether each place of the one side meets one of the other."""
    steps = (how.window_strides, how.lhs_dilation, how.rhs_dilation)
    is_plain = all(set(step) == {1} for step in steps)
    is_whole = how.feature_group_count == how.batch_group_count == 1
    is_inside = not any(low or high for low, high in how.padding)
    has_numbers = x.size > 0 and weight.size > 0
    places = x.shape[2:] if how.dimension_numbers[0][:2] == "CN" else (1,) * (x.rank - 2)
    return is_plain and is_whole and is_inside and has_numbers and weight.shape[2:] == places


def _turned(letters: str, order: Sequence[int]) -> str:
    """The letters of dimensions in another order."""
    return "".join(letters[dim] for dim in order)
