"""Models of every sort give what eager gives, and run where the file says."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
import transformers
from torch import nn

from tests.models import expectations, running, sweep
from tests.models.case import Case
from tests.models.zoo.building import determined
from tests.sweeping.command import differences
from tests.sweeping.comparing import Ran
from tests.sweeping.worker import Worker

EXPECTED = expectations.load()

ALWAYS = (
    "gpt2 training",
    "llama generation",
    "mixtral inference",
    "deberta-v2 training",
    "t5 inference",
    "wav2vec2 inference",
    "unet-condition inference",
    "gnn training",
    "convnext training-bf16",
)
"""One of each sort is run always."""

PART = [case for case in EXPECTED if str(case) in ALWAYS]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker[Case]]:
    with sweep.start() as found:
        yield found


def test_the_file_has_every_case_of_the_zoo(worker):
    assert set(worker.cases()) == set(EXPECTED)
    assert len(PART) == len(ALWAYS)


@pytest.mark.parametrize("case", PART, ids=str)
def test_a_part(worker, case):
    assert not differences([worker.run(case)], EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in EXPECTED if case not in PART], ids=str)
def test_the_rest(worker, case):
    assert not differences([worker.run(case)], EXPECTED)


def test_the_file_reads_as_it_is_written():
    head, _, lines = expectations.FILE.read_text().partition("\n")
    assert head.startswith("# torch ")
    assert expectations.dump(EXPECTED).partition("\n")[2] == lines


FAULTY = """
from pjrt_bridge.torch_interop.lowering import registry
from tests.models import worker

registry.names()
table = registry._LOWERINGS
table["aten.tanh.default"] = table["aten.sin.default"]
for name in ("aten.index_put.default", "aten._unsafe_index_put.default"):
    table[name] = lambda c, x, *rest, **how: x
del table["aten.convolution.default"]
worker.main()
"""


# The same of an operator is in tests/opinfo, always.
@pytest.mark.slow
def test_faults_in_values_gradients_and_placement_are_found():
    command = [sys.executable, "-c", FAULTY]
    with Worker(Case, command, limit=sweep.LIMIT, life=sweep.LIFE) as faulty:
        forward, backward, placement = (
            differences([faulty.run(Case(model, mode))], EXPECTED)
            for model, mode in (("gpt2", "inference"), ("opt", "training"), ("vit", "inference"))
        )
    assert "call 0: ['result']['logits']: Tensor-likes are not close" in forward[0]
    assert "call 0: ['gradient']['model.decoder" in backward[0]
    assert placement == ["vit inference: mixed aten.convolution.default, expected device"]


def test_a_call_is_kept_as_it_was():
    """Neither the optimizer's step nor the next call changes what is compared."""
    mode = running.MODES["training"]
    once = next(running.calls("convnet", mode, lambda model: model))
    both = list(running.calls("convnet", mode, lambda model: model))
    assert running.compare(both[0], once, 0.0) == []
    assert running.compare(both[0], both[1], 1e-4)


X = torch.tensor([[100.0, -1e-3], [0.5, 2.0]])


def compared(found: Ran, tolerance: float = 1e-4) -> list[str]:
    return running.compare(
        found, Ran({"y": X}, {"w": X, "zero": 1e-8 * X, "none": None}, {"b": X}), tolerance
    )


def ran(y=X, w=X, zero=1e-8 * X, b=X) -> Ran:
    return Ran({"y": y}, {"w": w, "zero": zero, "none": None}, {"b": b})


def test_differences_are_measured_by_the_largest_element():
    assert compared(ran()) == []
    assert compared(ran(y=X + 0.009, w=X - 0.009, b=X + 0.009)) == []
    assert len(compared(ran(y=X + 0.011, w=X - 0.011, b=X + 0.011))) == 3


def test_gradients_that_are_only_rounding_are_measured_by_the_others():
    assert compared(ran(zero=-1e-8 * X)) == []
    assert len(compared(ran(zero=1e-5 * X))) == 1


def test_a_missing_gradient_is_a_difference():
    (line,) = compared(Ran({"y": X}, {"w": None, "zero": 1e-8 * X, "none": None}, {"b": X}))
    assert "NoneType" in line


def test_nothing_is_left_to_chance():
    with pytest.raises(AssertionError, match="to chance"):
        running.assert_determined(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.1)))
    found = determined(transformers.BlipConfig(text_config={"hidden_dropout_prob": 0.2}))
    assert found.text_config.hidden_dropout_prob == 0.0
