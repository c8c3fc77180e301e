import numpy as np
import pytest
import torch

from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.torch_interop.lowering.math import approximation
from tests.torch_interop.lowering.harness import BOTH, tensor_type

POINTS = torch.linspace(-2, 2, 9, dtype=torch.float64)


@pytest.mark.parametrize("engine", BOTH)
def test_polynomials_have_the_highest_power_first(engine):
    builder = Builder([tensor_type(POINTS)])
    found = approximation.polynomial(builder, *builder.parameters, (3.0, -2.0, 0.5))
    (values,) = engine(builder.finish([found]), POINTS.numpy())
    np.testing.assert_allclose(values, np.polyval((3.0, -2.0, 0.5), POINTS), rtol=1e-14)


@pytest.mark.parametrize("engine", BOTH)
def test_chebyshev_series_count_the_constant_half(engine):
    builder = Builder([tensor_type(POINTS)])
    coefficients = (0.25, -1.0, 3.0)
    found = approximation.chebyshev_series(builder, *builder.parameters, coefficients)
    (values,) = engine(builder.finish([found]), POINTS.numpy())
    expected = np.polynomial.chebyshev.chebval(POINTS.numpy() / 2, (1.5, -1.0, 0.25))
    np.testing.assert_allclose(values, expected, rtol=1e-14)
