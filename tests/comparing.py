"""Whether two tensors are the same: layout, element type, shape, strides, and numbers.

Numbers may differ by a part of the element, and by a part of the largest element of the tensor:
that is what rounding leaves of sums whose terms cancel. So small results are looked at as closely
as large ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense


class Tolerance(NamedTuple):
    """By how much numbers may differ.

    Attributes:
        of_element: a part of the expected element.
        of_largest: a part of the largest expected element of the tensor.
    """

    of_element: float
    of_largest: float


EXACT = Tolerance(0.0, 0.0)


def difference(
    found: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, *, strided: bool = True
) -> str | None:
    """In what two tensors differ; None where they are the same.

    Args:
        found: judged.
        expected: the oracle's.
        tolerance: for the numbers.
        strided: whether strides are compared.
    """
    return kind_difference(found, expected, strided=strided) or number_difference(
        found, expected, tolerance
    )


def kind_difference(
    found: torch.Tensor, expected: torch.Tensor, *, strided: bool = True
) -> str | None:
    """In what two tensors differ besides their numbers."""
    for name in ("layout", "dtype", "shape"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        if ours != theirs:
            return f"{name} {ours}, not {theirs}"
    if strided and found.layout is torch.strided and not _lie_alike(found, expected):
        return f"strides {found.stride()}, not {expected.stride()}"
    return None


def _lie_alike(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether strides agree where they matter; gaps in memory are not kept by the backend."""
    if expected.numel() == 0:
        return True
    pairs = zip(expected.shape, found.stride(), expected.stride(), strict=True)
    long = [(ours, theirs) for size, ours, theirs in pairs if size > 1]
    if any(theirs == 0 for _, theirs in long) or not is_dense(expected):
        return all((ours == 0) == (theirs == 0) for ours, theirs in long)
    return all(ours == theirs for ours, theirs in long)


def number_difference(
    found: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, *, least: float = 0.0
) -> str | None:
    """What `assert_close` says of the numbers.

    Args:
        found: judged.
        expected: the oracle's.
        tolerance: for the numbers.
        least: what counts as the largest element where that is smaller.
    """
    found, expected = found.detach(), expected.detach()
    if expected.is_floating_point() and expected.dtype.itemsize == 1:
        found, expected = found.float(), expected.float()
    absolute = tolerance.of_largest and tolerance.of_largest * max(largest(expected), least)
    try:
        torch.testing.assert_close(
            found,
            expected,
            rtol=tolerance.of_element,
            atol=absolute,
            equal_nan=True,
            check_stride=False,
        )
    except AssertionError as error:
        return " ".join(str(error).split())
    return None


def largest(tensor: torch.Tensor) -> float:
    """The largest magnitude of the finite elements; 0 where there is none."""
    values = tensor.detach()
    if values.layout is not torch.strided:
        values = values.coalesce().values() if values.is_sparse else values.values()
    if not values.numel():
        return 0.0
    if values.is_floating_point() and values.dtype.itemsize == 1:
        values = values.float()
    return float(values.abs().nan_to_num(nan=0.0, posinf=0.0).max())
