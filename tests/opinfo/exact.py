"""Whether what differs from eager is as near as eager to the result in double precision.

A compiled function rounds less often, or at other places. Where terms cancel, that shows in more
places than a tolerance may allow for.
"""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree

from tests.comparing import Tolerance, kind_difference, largest
from tests.opinfo.cases import Sample
from tests.sweeping.comparing import Ran, Tolerances, differences

FACTOR = 2.0
"""An error may be so many times eager's largest in the tensor, beside the tolerance."""

FURTHEST = {torch.bfloat16: 0.25, torch.float16: 0.05}
"""Of the largest element; an eager result that is further away is no matter of rounding."""

_FURTHEST = 1e-2

SMALLEST = 1e-3
"""A tensor whose largest element is less than this part of the largest of all counts as if it were
that: some are zero but for rounding."""
_WIDER = {
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_DOUBLE = frozenset(_WIDER.values())


def widened(sample: Sample) -> Sample:
    """The sample in double precision."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, _widened, (sample.args, sample.kwargs))
    return Sample(args, kwargs, sample.differentiated)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    wider = _WIDER.get(tensor.dtype)
    if wider is None:
        return tensor
    return tensor.detach().to(wider).requires_grad_(tensor.requires_grad)


def is_as_near(found: Ran, expected: Ran, exact: Ran, tolerance: Tolerances) -> bool:
    """Whether numbers found are as near to the exact ones as eager's; all else has to be eager's.

    Args:
        found: judged.
        expected: eager's.
        exact: in double precision.
        tolerance: by how much numbers may differ.
    """
    runs = [run.named() for run in (found, expected, exact)]
    if len({tuple(place for place, _ in named) for named in runs}) > 1:
        return False
    least = SMALLEST * max((_largest(leaf) for _, leaf in runs[2]), default=0.0)
    for (place, one), (_, other), (_, true) in zip(*runs, strict=True):
        if not all(isinstance(leaf, torch.Tensor) for leaf in (one, other, true)):
            alike = not differences(Ran([one], [], []), Ran([other], [], []), tolerance)
        elif other.dtype in _WIDER and true.dtype is _WIDER[other.dtype]:
            strided = not place.startswith("['gradient']")
            alike = one.requires_grad == other.requires_grad
            alike &= kind_difference(one, other, strided=strided) is None
            alike = alike and _is_as_near(
                one.detach(), other.detach(), true.detach(), tolerance(other.dtype), least
            )
        else:
            alike = not differences(Ran([one], [], []), Ran([other], [], []), tolerance)
        if not alike:
            return False
    return True


def _largest(leaf: object) -> float:
    return largest(leaf) if isinstance(leaf, torch.Tensor) and leaf.dtype in _DOUBLE else 0.0


def _is_as_near(
    found: torch.Tensor,
    expected: torch.Tensor,
    exact: torch.Tensor,
    tolerance: Tolerance,
    least: float,
) -> bool:
    if found.layout is not torch.strided or exact.shape != expected.shape:
        return False
    finite = expected.isfinite() & exact.isfinite()
    if not torch.equal(found.nan_to_num()[~finite], expected.nan_to_num()[~finite]):
        return False
    true = exact[finite]
    ours, theirs = ((x[finite].to(exact.dtype) - true).abs() for x in (found, expected))
    furthest = float(theirs.max()) if theirs.numel() else 0.0
    if furthest > FURTHEST.get(expected.dtype, _FURTHEST) * max(largest(true), least):
        return False
    limit = tolerance.of_element * true.abs() + tolerance.of_largest * largest(true)
    return bool((ours <= limit + FACTOR * furthest).all())
