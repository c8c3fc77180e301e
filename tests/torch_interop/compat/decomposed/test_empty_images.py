"""Images without elements have the shapes that PyTorch's kernels give them."""

import pytest
import torch
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from tests.torch_interop.helpers import assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("shape", [(1, 0, 4, 2), (2, 2, 0, 4), (0, 4, 2, 2), (2, 4, 0), (2, 4, 6)])
def test_an_image_is_rearranged_as_in_eager_mode(shape: tuple[int, ...]) -> None:
    x = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    shuffled = x.repeat(*[1] * (len(shape) - 3), 4, 1, 1)
    for rearranged, image in ((pixel_unshuffle, x), (pixel_shuffle, shuffled)):
        assert_same(compiled(rearranged)(image, 2), rearranged(image, 2))
