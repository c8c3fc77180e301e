import numpy as np
import pytest
import torch

from pjrt_bridge.torch_interop.lowering.nn.weighted_windows import WeightedTerms
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.lowering.harness import check, lower

torch.manual_seed(0)
SIZES = {
    "linear1d": ([2, 3, 13], ([5], [30], [1], [13])),
    "bilinear2d": ([2, 3, 13, 17], ([5, 6], [20, 9], [1, 1], [13, 17], [40, 2])),
    "bicubic2d": ([2, 3, 13, 17], ([5, 6], [20, 9], [1, 1], [13, 17], [40, 2])),
    "trilinear3d": ([1, 2, 4, 5, 6], ([2, 9, 6], [8, 1, 13])),
}
CASES = [(name, size) for name, (_, sizes) in SIZES.items() for size in sizes]


@pytest.mark.parametrize(("name", "size"), CASES)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_resizing_and_its_gradient(name, size, corners, dtype):
    given, op = SIZES[name][0], f"aten.upsample_{name}"
    check(f"{op}.default", torch.randn(given).to(dtype), size, corners)
    grad = torch.randn(*given[:2], *size).to(dtype)
    check(f"{op}_backward.default", grad, size, given, corners)


@pytest.mark.parametrize("size", [[5, 6], [20, 9], [13, 30], [13, 17]])
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_infinities_are_where_eager_has_them(size, value):
    given = SIZES["bilinear2d"][0]
    image, grad = torch.randn(given), torch.randn(*given[:2], *size)
    image[0, 0, 2, 3] = grad[0, 0, 2, 3] = value
    check("aten.upsample_bilinear2d.default", image, size, False)
    check("aten.upsample_bilinear2d_backward.default", grad, size, given, False)


def test_scales_that_are_given():
    given = SIZES["bilinear2d"][0]
    check("aten.upsample_bilinear2d.default", torch.randn(given), [5, 6], False, 0.4, 0.37)
    grad = torch.randn(*given[:2], 5, 6)
    check("aten.upsample_bilinear2d_backward.default", grad, [5, 6], given, False, 0.4, 0.37)


def test_bytes_are_refused():
    image = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    with pytest.raises(NotLowerable, match="uint8"):
        lower("aten.upsample_bilinear2d.default", image, [2, 2], False)


def test_turned_weights_are_those_of_the_transposed_matrix():
    rng = np.random.default_rng(0)
    places, weights = rng.integers(-1, 6, (9, 4)), rng.normal(size=(9, 4))
    turned = WeightedTerms(places, weights).turned(6)
    matrices = []
    for terms, size in ((WeightedTerms(places, weights), 6), (turned, 9)):
        matrix = np.zeros((len(terms.places), size + 1))
        rows = np.arange(len(matrix))[:, None]
        np.add.at(matrix, (rows, terms.places), terms.weights)
        matrices.append(matrix[:, :size])
    np.testing.assert_allclose(matrices[1], matrices[0].T, rtol=1e-12)
