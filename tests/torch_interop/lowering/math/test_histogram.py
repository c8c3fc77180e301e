import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check

torch.manual_seed(0)
EDGES = torch.tensor([-1.0, -0.5, 0.0, 0.2, 1.0])
X = torch.cat([torch.randn(50), EDGES])
NANS = torch.cat([X, torch.tensor([math.nan, math.inf, -math.inf])])
WEIGHT = torch.rand(NANS.numel())
POINTS = torch.randn(5, 10, 2)


@pytest.mark.parametrize("density", [False, True])
def test_histogram_between_edges(density):
    check("aten.histogram.bins_tensor", NANS, EDGES, density=density)
    check("aten.histogram.bins_tensor", NANS, EDGES, weight=WEIGHT, density=density)
    check("aten.histogram.bins_tensor", X.reshape(5, 11).double(), EDGES.double(), density=density)


@pytest.mark.parametrize("density", [False, True])
def test_histogram_of_equal_bins(density):
    check("aten.histogram.bin_ct", X, 7, density=density)
    check("aten.histogram.bin_ct", NANS, 7, range=[-1.0, 2.0], weight=WEIGHT, density=density)


def test_histogram_of_one_value_and_of_nothing():
    check("aten.histogram.bin_ct", torch.ones(3), 4)
    check("aten.histogram.bin_ct", torch.ones(0), 4)
    check("aten.histogram.bins_tensor", torch.ones(0), EDGES)


@pytest.mark.parametrize("density", [False, True])
def test_histogram_in_two_dimensions(density):
    edges, equal = [EDGES, EDGES[1:]], "aten._histogramdd_from_bin_cts.default"
    weight = WEIGHT[:50].reshape(5, 10)
    check("aten._histogramdd_from_bin_tensors.default", POINTS, edges, density=density)
    check(equal, POINTS, [3, 4], density=density)
    check(equal, POINTS, [3, 4], range=[-1.0, 1.0, -2.0, 2.0], weight=weight, density=density)
    check("aten._histogramdd_bin_edges.default", POINTS, [3, 4])
