"""PyTorch's CPU kernels as custom calls; see `native/module.c`."""

from os import PathLike

ASSEMBLE_BOXES: int
"""Address of the XLA_FFI_Handler that copies elements to their places (`native/assemble.h`)."""

CHECK_DIVISORS: int
"""Address of the XLA_FFI_Handler that checks divisors (`native/divisors.h`)."""

ATTEND_FEW: int
"""Address of the XLA_FFI_Handler of attention of few queries (`native/attend.h`)."""

CHECK_POSITIONS: int
"""Address of the XLA_FFI_Handler that checks positions (`native/positions.h`)."""

COMBINE_ALONG: int
"""Address of the XLA_FFI_Handler that combines updates with an array (`native/combine.h`)."""

COMPUTE_EXPRESSION: int
"""Address of the XLA_FFI_Handler that computes expressions (`native/expression.h`)."""

CONVOLVE_DEPTHWISE: int
"""Address of the XLA_FFI_Handler of depthwise convolutions (`native/depthwise.h`)."""
CONVOLVE_SMALL: int
"""Address of the XLA_FFI_Handler of small convolutions (`native/convolve.h`)."""

FIND_EXTREMES: int
"""Address of the XLA_FFI_Handler that finds extremes (`native/extremes.h`)."""

GATHER_ALONG: int
"""Address of the XLA_FFI_Handler that reads at positions (`native/gather.h`)."""

HANDLER: int
"""Address of the XLA_FFI_Handler."""

MULTIPLY_THIN: int
"""Address of the XLA_FFI_Handler that multiplies few rows by weights (`native/thin.h`)."""

NORMALIZE_ROWS: int
"""Address of the XLA_FFI_Handler that normalizes rows (`native/norm.h`)."""

POOL_AVERAGES: int
"""Address of the XLA_FFI_Handler of averages of windows (`native/pool.h`)."""

POOL_GRADIENTS: int
"""Address of the XLA_FFI_Handler that sums gradients of maxima (`native/pool.h`)."""

POOL_MAXIMA: int
"""Address of the XLA_FFI_Handler that finds maxima of windows (`native/pool.h`)."""

POOL_POSITIONS: int
"""Address of the XLA_FFI_Handler that finds where these are (`native/pool.h`)."""

RUN_RECURRENCE: int
"""Address of the XLA_FFI_Handler that runs a recurrent layer (`native/recurrence.h`)."""

RUN_RECURRENCE_BACKWARD: int
"""Address of the XLA_FFI_Handler that computes the gradients of one (`native/recurrence.h`)."""

SCAN_ALONG: int
"""Address of the XLA_FFI_Handler of running sums and products (`native/scan.h`)."""

SORT_ROWS: int
"""Address of the XLA_FFI_Handler that sorts rows (`native/sort.h`)."""

SUM_BAGS: int
"""Address of the XLA_FFI_Handler that sums bags of rows (`native/bags.h`)."""

TOTAL_ALONG: int
"""Address of the XLA_FFI_Handler that reduces integers and float64 (`native/total.h`)."""

REDUCE_EXPRESSION: int
"""Address of the XLA_FFI_Handler that reduces an expression (`native/reduce.h`)."""

WEIGH_ALONG: int
"""Address of the XLA_FFI_Handler that sums by constant weights (`native/weigh.h`)."""

WRITE_WINDOWS: int
"""Address of the XLA_FFI_Handler that writes windows of elements (`native/windows.h`)."""

REVISION: str
"""Hash of the sources; see `pjrt_bridge.native_modules`."""

def connect(
    path: str | PathLike[str], operators: tuple[tuple[str, str, str, str, int], ...], /
) -> None:
    """Find the functions of libtorch_cpu at a path, and say which operators may be called.

    Before that the handler refuses every call.

    Args:
        path: of the library.
        operators: signatures, as `operators.Operator.signature` has them. They have to be right:
            arguments reach an operator without types.

    Raises:
        OSError: there is no library.
        LookupError: a function is missing.
        ValueError: an operator has too many parameters, or too long a name.
    """
