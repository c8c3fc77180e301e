import pytest
import torch

from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.lowering.harness import check, lower

torch.manual_seed(0)
SIZE = [2, 3, 13, 17]
X = torch.randn(SIZE)


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [[5, 6], [20, 9], [1, 1], [13, 17], [40, 2]])
@pytest.mark.parametrize("corners", [False, True])
def test_antialiased_resizing_and_its_gradient(kind, size, corners):
    name = f"aten._upsample_{kind}2d_aa"
    grad = torch.randn(*SIZE[:2], *size)
    check(f"{name}.default", X, size, corners)
    check(f"{name}_backward.default", grad, size, SIZE, corners)


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_scales_and_other_types(kind):
    name, size = f"aten._upsample_{kind}2d_aa", [5, 6]
    check(f"{name}.default", X, size, False, 0.4, 0.37)
    check(f"{name}_backward.default", torch.randn(2, 3, 5, 6), size, SIZE, False, 0.4, 0.37)
    check(f"{name}.default", X.double(), size, False)


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [[5, 6], [20, 9], [13, 30], [13, 17]])
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_infinities_stay_where_they_are_read(kind, size, value):
    name = f"aten._upsample_{kind}2d_aa"
    image, grad = X.clone(), torch.randn(*SIZE[:2], *size)
    image[0, 0, 2, 3] = grad[0, 0, 2, 3] = value
    check(f"{name}.default", image, size, False)
    check(f"{name}_backward.default", grad, size, SIZE, False)


def test_dimension_that_keeps_its_size_is_not_resized_whatever_its_scale():
    check("aten._upsample_bilinear2d_aa.default", X, [13, 5], False, 0.9, 0.3)
    check("aten._upsample_bilinear2d_aa_backward.default", X, SIZE[2:], SIZE, False, 0.9, 1.1)


def test_bytes_are_refused():
    image = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    with pytest.raises(NotLowerable, match="uint8"):
        lower("aten._upsample_bilinear2d_aa.default", image, [2, 2], False)
