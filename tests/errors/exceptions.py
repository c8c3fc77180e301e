"""What raises in eager and not compiled, although every other backend raises, and why."""

from tests.errors.case import Case

EXCEPTIONS = {
    Case("logspace.tensor_overload", "indices"): (
        "a power that is too large for a float is an error in eager, which makes a Python number "
        "of it; compiled it is infinite, as it is for tensors"
    ),
}
"""For cases with calls of the outcome `accepted`, the reason."""
