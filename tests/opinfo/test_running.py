"""How results of operators are judged."""

from __future__ import annotations

import torch
from torch.testing._internal import common_methods_invocations as database

from tests.opinfo.case import Case
from tests.opinfo.cases import Sample
from tests.opinfo.exact import widened
from tests.opinfo.running import _Run
from tests.sweeping.worker import Verdict


def test_gradients_in_double_precision_are_those_of_the_same_tangents():
    case = Case("neg", "bfloat16", "backward")
    info = next(info for info in database.op_db if info.full_name == case.entry)
    run = _Run(case, info, Verdict())
    sample = Sample((torch.ones(5, 10, dtype=torch.bfloat16, requires_grad=True),), {}, lambda x: x)
    own = run._eager([sample])
    exact = run._eager([widened(sample)], like=own.results)
    (ours,), (theirs,) = own.gradients, exact.gradients
    assert theirs.dtype is torch.float64
    assert torch.equal(ours.double(), theirs)
