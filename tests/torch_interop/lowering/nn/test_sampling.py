import itertools
import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check, run_on_cpu

torch.manual_seed(0)
IMAGE, GRID = torch.randn(2, 3, 5, 7), torch.randn(2, 4, 3, 2) * 1.2
VOLUME, POINTS = torch.randn(2, 2, 4, 5, 6), torch.randn(2, 2, 3, 2, 3) * 1.2
BILINEAR, NEAREST, BICUBIC = range(3)
PADDINGS = range(3)


def is_always_run(mode, padding, corners):
    """Each mode meets each padding with one rule of corners; of the longest two are run."""
    if mode == BICUBIC:
        # Sixteen neighbours, four seconds.
        return (padding, corners) in ((0, True), (2, False))
    return corners == bool((mode + padding) % 2)


def parameters_of(modes):
    return [
        pytest.param(*one, marks=[] if is_always_run(*one) else [pytest.mark.slow])
        for one in itertools.product(modes, PADDINGS, (False, True))
    ]


@pytest.mark.parametrize(
    ("mode", "padding", "corners"), parameters_of((BILINEAR, NEAREST, BICUBIC))
)
def test_images_and_gradients(mode, padding, corners):
    parameters = (mode, padding, corners)
    check("aten.grid_sampler_2d.default", IMAGE, GRID, *parameters)
    grad = torch.randn(2, 3, 4, 3)
    name = "aten.grid_sampler_2d_backward.default"
    check(name, grad, IMAGE, GRID, *parameters, [True, True])
    check(name, grad, IMAGE, GRID, *parameters, [False, True])


@pytest.mark.parametrize(("mode", "padding", "corners"), parameters_of((BILINEAR, NEAREST)))
def test_volumes_and_gradients(mode, padding, corners):
    parameters = (mode, padding, corners)
    engines = (run_on_cpu,)  # The interpreter takes seconds for these.
    check("aten.grid_sampler_3d.default", VOLUME, POINTS, *parameters, engines=engines)
    grad = torch.randn(2, 2, 2, 3, 2)
    name = "aten.grid_sampler_3d_backward.default"
    check(name, grad, VOLUME, POINTS, *parameters, [True, True], engines=engines)


@pytest.mark.parametrize("corners", [False, True])
def test_points_on_elements_and_edges(corners):
    line = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0, -1.5, 3.0])
    grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1)[None]
    image = torch.randn(1, 1, 5, 5)
    for mode, padding in itertools.product((BILINEAR, NEAREST), PADDINGS):
        check("aten.grid_sampler_2d.default", image, grid, mode, padding, corners)


def test_one_element_and_no_points():
    one = torch.randn(1, 2, 1, 1)
    for padding in PADDINGS:
        check("aten.grid_sampler_2d.default", one, GRID[:1], BILINEAR, padding, True)
    check("aten.grid_sampler_2d.default", IMAGE, GRID[:, :0], BILINEAR, 0, False)


def test_far_away_and_nan_read_zeros():
    grid = torch.tensor([[[[math.nan, 0.0], [1e20, 0.0], [0.0, -math.inf]]]])
    check("aten.grid_sampler_2d.default", IMAGE[:1], grid, NEAREST, 0, False)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", [BILINEAR, NEAREST])
def test_points_at_no_numbers(mode, padding):
    pairs = torch.tensor([*itertools.product((math.nan, math.inf, -math.inf, 0.3), repeat=2)])
    triples = torch.cat([pairs, torch.full((16, 1), 0.2)], 1).reshape(1, 1, 1, 16, 3)
    pairs = pairs.reshape(1, 1, 16, 2)
    image, volume, grad = IMAGE[:1], VOLUME[:1], torch.randn(1, 2, 1, 1, 16)
    engines = [run_on_cpu]
    for corners in (False, True):
        rest = (mode, padding, corners)
        check("aten.grid_sampler_2d.default", image, pairs, *rest, engines=engines)
        check("aten.grid_sampler_3d.default", volume, triples, *rest, engines=engines)
        # For images PyTorch (2.13) reads and writes anywhere, and may end the process.
        name = "aten.grid_sampler_3d_backward.default"
        check(name, grad, volume, triples, *rest, [True, True], engines=engines)


def test_other_types():
    grid = torch.tensor([[[[-0.5, 0.3], [0.5, 0.75]]]], dtype=torch.float64)
    image = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    check("aten.grid_sampler_2d.default", image, grid, BILINEAR, 0, True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_reads_the_elements_that_eager_reads(dtype):
    generator = torch.Generator().manual_seed(0)
    grid = (torch.rand(1, 5, 6, 2, generator=generator) * 2.2 - 1.1).to(dtype)
    # Neighbours are alike, so that a place beside the right one is seen and its weight is not.
    image = (torch.arange(37 * 41) % 128).reshape(1, 1, 37, 41).to(dtype)
    for corners in (False, True):
        name, rest = "aten.grid_sampler_2d.default", (NEAREST, 0, corners)
        check(name, image, grid, *rest, exact=True, engines=[run_on_cpu])
