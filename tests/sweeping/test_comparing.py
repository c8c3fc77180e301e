"""The comparison sees every kind of difference."""

from __future__ import annotations

import math

import pytest
import torch

from tests.comparing import EXACT, Tolerance
from tests.sweeping.comparing import Numbers, Ran, differences

X = torch.tensor([[1.0, math.nan, 0.0], [2.0, math.inf, -3.0]])


def ran(result=X, gradient=X, argument=X):
    return Ran([result], [gradient], [argument])


def tolerance(dtype):
    return Tolerance(1e-5, 1e-6) if dtype.is_floating_point else EXACT


def compare(found, expected=None, numbers=Numbers.ALL):
    return differences(found, expected or ran(), tolerance, numbers)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (X + 1e-3, "not close"),
        (X.nan_to_num(), "not close"),
        (-X, "not close"),
        (X.double(), "dtype"),
        (X[:1], "shape"),
        (X.t().contiguous().t(), "strides"),
        (X[:, :1].expand(2, 3), "strides"),
        (X.to_sparse(), "layout"),
        (X.clone().requires_grad_(), "requires_grad"),
        (1.0, "a float, not a Tensor"),
    ],
)
def test_a_difference_is_named_with_its_place(other, says):
    assert compare(ran()) == []
    (reason,) = compare(ran(result=other))
    assert reason.startswith("['result'][0]: ")
    assert says in reason


def test_gradients_and_arguments_count_too():
    found = compare(ran(gradient=X + 1, argument=X + 1))
    assert {reason.split(":")[0] for reason in found} == {"['argument'][0]", "['gradient'][0]"}


def test_strides_of_gradients_and_gaps_are_free():
    assert compare(ran(gradient=X.t().contiguous().t())) == []
    gaps = torch.cat([X, X], 1)[:, :3]
    assert compare(ran(), ran(result=gaps)) == []


def test_a_missing_result_is_a_difference():
    (reason,) = compare(Ran([X, X], [X], [X]))
    assert reason.startswith("other structure")


@pytest.mark.parametrize(("one", "other"), [(1, 2), (True, 1), (1.0, 1.5), (None, 0), ("a", "b")])
def test_results_that_are_no_tensors(one, other):
    assert compare(ran(result=one), ran(result=one)) == []
    assert len(compare(ran(result=one), ran(result=other))) == 1


def test_random_results_agree_in_their_mean():
    torch.manual_seed(0)
    one, two = torch.rand(1000), torch.rand(1000)
    assert compare(ran(result=one), ran(result=two))
    assert compare(ran(result=one), ran(result=two), Numbers.MEAN) == []
    (reason,) = compare(ran(result=one), ran(result=two + 1), Numbers.MEAN)
    assert "mean" in reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_small_results_are_looked_at_as_closely_as_large_ones(dtype):
    values = torch.arange(1.0, 9).to(dtype)
    for scale in (1.0, 2.0**-10):
        wrong = values * scale
        wrong[0] *= 1.25
        assert compare(ran(result=wrong), ran(result=values * scale))


def test_gradients_that_are_only_rounding_are_measured_by_the_others():
    found, expected = ran(gradient=X * 1e-9), ran(gradient=X * 2e-9)
    assert compare(found, expected)
    assert differences(found, expected, tolerance, least_gradient=1.0) == []
    assert differences(ran(result=X * 1e-9), ran(result=X * 2e-9), tolerance, least_gradient=1.0)


def test_sums_that_cancel_are_rounded_as_their_terms_are():
    large = torch.tensor([1000.0, 1e-4])
    assert compare(ran(result=large), ran(result=large + torch.tensor([0, 3e-4]))) == []
    small = torch.tensor([1.0, 1e-4])
    assert compare(ran(result=small), ran(result=small + torch.tensor([0, 3e-4])))
