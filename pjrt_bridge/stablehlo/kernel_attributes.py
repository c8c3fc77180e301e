"""The numbers of what kernels compute: of a convolution, of attention, of a norm; reductions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pjrt_bridge.dtypes import DType

Reduction = Literal["sum", "prod", "max", "min", "and", "or"]
"""The operation of a reduction, as `Builder.reduce_sum`, `reduce_prod` and so on define it."""

Combination = Reduction | Literal["last"]
"""What several numbers at one place become; `last`: the last one of them, or any."""

Scan = Literal["sum", "prod", "logsumexp"]
"""How elements are combined with all before them; the last: the logarithm of their exponentials'
sum."""


@dataclass(frozen=True)
class Convolution:
    """The attributes of a convolution, as `Builder.convolution` takes them.

    Attributes:
        window_strides: per spatial dimension, as all of these up to `rhs_dilation`.
        padding: zeros before and after the left side; negative ones cut.
        lhs_dilation: distance of the left side's elements.
        rhs_dilation: distance of the right side's.
        dimension_numbers: a letter for each dimension of the sides and the result.
        feature_group_count: groups of the left side's features.
        batch_group_count: groups of its batches.
    """

    window_strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    lhs_dilation: Sequence[int]
    rhs_dilation: Sequence[int]
    dimension_numbers: tuple[str, str, str]
    feature_group_count: int = 1
    batch_group_count: int = 1


@dataclass(frozen=True)
class Pooling:
    """Windows that are pooled along some dimensions.

    Attributes:
        axes: the dimensions; for each of them:
        sizes: how many windows there are.
        window: places of a window.
        strides: from one window to the next.
        padding: places before the data that a window may begin with.
        dilation: from one place of a window to the next.
    """

    axes: Sequence[int]
    sizes: Sequence[int]
    window: Sequence[int]
    strides: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]


@dataclass(frozen=True)
class Recurrence:
    """A recurrent layer in one direction.

    Attributes:
        kind: of cell: "tanh" or "relu" of a sum, "gru" or "lstm" with PyTorch's order of gates.
        reverse: it goes from the last step to the first.
    """

    kind: str
    reverse: bool


@dataclass(frozen=True)
class Attention:
    """The numbers of `softmax(scale * query @ key^T + mask) @ value`.

    Attributes:
        scale: of the scores.
        is_causal: a query sees the keys up to its own position, counted from the first of both.
    """

    scale: float
    is_causal: bool


@dataclass(frozen=True)
class Norm:
    """The numbers of `(x - mean) / sqrt(variance + eps) * weight + bias`.

    Attributes:
        count: how many of the last dimensions are normalized together.
        eps: is added to the variance.
        is_centered: the mean is subtracted, as in layer norm; else it is 0, as in RMS norm.
        dtype: of the result.
        rounding: the type that is rounded to before the weight is multiplied; None: none.
    """

    count: int
    eps: float
    is_centered: bool
    dtype: DType
    rounding: DType | None = None


@dataclass(frozen=True)
class ExpressionRead:
    """How the elements of an array are read, one for each element of the result.

    Attributes:
        first: the element that is read first, in row-major order.
        dims: the dimensions of what is read, outermost first: how many elements, and how far one is
            from the one before it in the array.
    """

    first: int
    dims: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ExpressionStep:
    """A step of an elementwise expression, in float32; truth is 1 and falsehood is 0.

    Attributes:
        operation: `"read"`, of an array, `"number"`, `"round"`, to bfloat16, `"erf"`, `"equal"`,
            `"not_equal"`, `"less"`, `"less_equal"`, or the name of an operation of StableHLO.
        operands: earlier steps, by their index.
        number: a number, or the index of the array that is read.
    """

    operation: str
    operands: tuple[int, ...] = ()
    number: float = 0.0


@dataclass(frozen=True)
class ExpressionResult:
    """A result of an elementwise expression.

    Attributes:
        step: the step that it is.
        shape: its shape, which has as many elements as that of each other result.
        dtype: its type, which a float is rounded to.
    """

    step: int
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class Expression:
    """An elementwise expression of arrays.

    Attributes:
        steps: in an order that they can be computed in.
        reads: how each array is read.
        results: one or several.
        overwritten: by result the array whose memory it takes; that one has its type, and is read
            from its first to its last element alone.
    """

    MOST_STEPS: ClassVar[int] = 96
    """So many steps an expression has at most."""
    MOST_READS: ClassVar[int] = 12
    """It reads so many arrays at most."""
    MOST_DIMS: ClassVar[int] = 6
    """Each in so many dimensions at most."""
    MOST_RESULTS: ClassVar[int] = 4
    """So many results it has at most."""

    steps: tuple[ExpressionStep, ...]
    reads: tuple[ExpressionRead, ...]
    results: tuple[ExpressionResult, ...]
    overwritten: Mapping[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of elements of each result."""
        return math.prod(self.results[0].shape)


@dataclass(frozen=True)
class AssemblyBox:
    """Elements of an array that are copied to a box of another one.

    Attributes:
        source: the array that they are read of, by its index.
        begin: the box's first index in each dimension of the result.
        sizes: how many elements it has along each.
        first: the element of the source that is read first, in row-major order.
        steps: for each dimension of the result how far the elements of the source are from each
            other; 0 where one is repeated, negative where they are read backwards.
    """

    source: int
    begin: tuple[int, ...]
    sizes: tuple[int, ...]
    first: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Assembly:
    """An array whose elements are copied from others.

    Attributes:
        shape: of the array.
        boxes: each of its elements is in one of them.
    """

    MOST_BOXES: ClassVar[int] = 64
    """So many boxes it has at most."""
    MOST_SOURCES: ClassVar[int] = 16
    """It is copied from so many arrays at most."""

    shape: tuple[int, ...]
    boxes: tuple[AssemblyBox, ...]
