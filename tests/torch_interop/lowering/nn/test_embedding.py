import math

import pytest
import torch

from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.lowering.harness import BOTH, check, compare, lower, overload

torch.manual_seed(0)
WEIGHT = torch.randn(6, 3)
NANS = WEIGHT.clone()
NANS[1, 0] = math.nan
INDICES = torch.tensor([0, 2, 5, 1, 1, 3])
OFFSETS = torch.tensor([0, 2, 2])
SUM, MEAN, MAX = range(3)
BAG = "aten._embedding_bag"


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
@pytest.mark.parametrize("padding", [-1, 1, 5])
@pytest.mark.parametrize("weight", [WEIGHT, WEIGHT.double(), NANS], ids=["f32", "f64", "nan"])
def test_bags(mode, padding, weight):
    parameters = (INDICES, OFFSETS, False, mode, False, None, False, padding)
    for name in (BAG, f"{BAG}_forward_only"):
        expected = list(overload(f"{name}.default")(weight, *parameters))
        for engine in BOTH:
            found = lower(f"{name}.default", weight, *parameters, engine=engine)
            # Which bag an index is in is left out by eager where it does not need that.
            compare([found[0], *found[2:]], [expected[0], *expected[2:]])
            if expected[1].numel():
                compare(found[1:2], expected[1:2])


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
def test_all_bags_are_empty(mode):
    parameters = (INDICES[:0], torch.tensor([0, 0]), False, mode)
    found = lower(f"{BAG}.default", WEIGHT, *parameters)
    expected = overload(f"{BAG}.default")(WEIGHT, *parameters)
    compare([found[0], found[2]], [expected[0], expected[2]])


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
def test_the_last_offset_may_be_the_end(mode):
    ends = torch.tensor([0, 2, 2, 6])
    for index in (torch.int64, torch.int32):
        parameters = (INDICES.to(index), ends.to(index), False, mode, False, None, True)
        (found, *_) = lower(f"{BAG}.default", WEIGHT, *parameters)
        compare([found], overload(f"{BAG}.default")(WEIGHT, *parameters)[:1])


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
@pytest.mark.parametrize("padding", [-1, 1])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_gradient_of_the_table(mode, padding, by_frequency):
    parameters = (INDICES, OFFSETS, by_frequency, mode, False, None, False, padding)
    out, *saved = overload(f"{BAG}.default")(WEIGHT, *parameters)
    if mode == MAX and by_frequency:
        return
    given = (INDICES, OFFSETS, *saved, 6, by_frequency, mode, False, None, padding)
    check(f"{BAG}_backward.default", torch.randn_like(out), *given)


def test_weighted_bags_and_gradients():
    share = torch.rand(6)
    out, *saved = overload(f"{BAG}.default")(
        WEIGHT, INDICES, OFFSETS, False, SUM, False, share, False, 3
    )
    (found, *_) = lower(
        f"{BAG}.default", WEIGHT, INDICES, OFFSETS, False, SUM, False, share, False, 3
    )
    compare([found], [out])
    grad = torch.randn_like(out)
    given = (INDICES, OFFSETS, *saved, 6, False, SUM, False, share, 3)
    check(f"{BAG}_backward.default", grad, *given)
    given = (WEIGHT, INDICES, OFFSETS, saved[0], SUM, 3)
    check(f"{BAG}_per_sample_weights_backward.default", grad, *given)


def test_no_indices():
    parameters = (INDICES[:0], OFFSETS * 0, False, MEAN)
    (found, *_) = lower(f"{BAG}.default", WEIGHT, *parameters)
    compare([found], [torch.zeros(3, 3)])


def test_a_sparse_gradient_is_refused():
    out, *saved = overload(f"{BAG}.default")(WEIGHT, INDICES, OFFSETS)
    given = (INDICES, OFFSETS, *saved, 6, False, SUM, False, None)
    with pytest.raises(NotLowerable, match="sparse"):
        lower(f"{BAG}_backward.default", out, INDICES, OFFSETS, *saved, 6, False, SUM, True, None)
    check(f"{BAG}_backward.default", out, *given)


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, math.inf])
def test_rows_within_a_norm(norm):
    indices = torch.tensor([[0, 2], [5, 0]])
    check("aten.embedding_renorm.default", WEIGHT.clone() * 3, indices, 1.0, norm)
    check("aten.embedding_renorm.default", WEIGHT.clone() * 3, indices[:0], 1.0, norm)
