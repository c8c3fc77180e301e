"""By how much models may differ from eager's."""

import torch

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Parts of the largest element of a tensor."""

SMALLEST = 1e-2
"""A gradient whose largest element is less than this part of the largest of all counts as if it
were that: some are zero but for rounding, such as those of the biases of keys."""
