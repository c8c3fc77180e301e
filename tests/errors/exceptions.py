"""What raises in eager and not compiled, although every other backend raises, and why."""

from tests.errors.case import Case

EXCEPTIONS = {
    Case("logspace.tensor_overload", "indices"): (
        "a power that is too large for a float is an error in eager, which makes a Python number "
        "of it; compiled it is infinite, as it is for tensors"
    ),
    Case("multinomial", "own"): (
        "probabilities that are negative, infinite or NaN, or sum up to 0, are an error in eager; "
        "compiled they are drawn from on the device, where nothing can raise"
    ),
}
"""For cases with calls of the outcome `accepted`, the reason."""
