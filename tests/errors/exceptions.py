"""What raises in eager and not compiled, although every other backend raises, and why."""

from tests.errors.case import Case

EXCEPTIONS = {
    Case("logspace.tensor_overload", "indices"): (
        "a power that is too large for a float is an error in eager, which makes a Python number "
        "of it; compiled it is infinite, as it is for tensors"
    ),
    Case("_segment_reduce.lengths", "dtypes"): (
        "eager has no kernel for some element types; compiled they are reduced, because a trial "
        "with other lengths says nothing of types"
    ),
}
"""For cases with calls of the outcome `accepted`, the reason."""
