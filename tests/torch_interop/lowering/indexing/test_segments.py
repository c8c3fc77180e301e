import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check

torch.manual_seed(0)
LENGTHS = torch.tensor([2, 0, 3, 1])
OFFSETS = torch.tensor([0, 2, 2, 5, 6])
DATA = torch.randn(6, 2)
DATA[0, 0] = DATA[3, 1] = DATA[4, 1] = DATA[5, 0] = 0
DATA[2, 0] = math.nan
TIES = torch.randint(0, 3, (2, 5, 2)).double()
KINDS = ["sum", "mean", "prod", "max", "min"]
FORWARD, BACKWARD = "aten.segment_reduce.default", "aten._segment_reduce_backward.default"


def check_with_gradient(data, kind, **options):
    check(FORWARD, data, kind, **options)
    out = torch.segment_reduce(data, kind, **options)
    check(BACKWARD, torch.randn_like(out), out, data, kind, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("initial", [None, 2.0])
def test_segments_and_gradients(kind, initial):
    check_with_gradient(DATA, kind, lengths=LENGTHS, initial=initial)
    check_with_gradient(DATA, kind, offsets=OFFSETS, initial=initial)
    batched = torch.tensor([[2, 0, 3], [1, 1, 3]])
    check_with_gradient(TIES, kind, lengths=batched, axis=1, initial=initial)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_and_nothing(kind):
    check_with_gradient(TIES[0].bfloat16(), kind, lengths=torch.tensor([2, 3]))
    check_with_gradient(DATA[:0], kind, lengths=torch.tensor([0, 0]))
    check(FORWARD, DATA, kind, lengths=torch.tensor([1, 2]), unsafe=True)
