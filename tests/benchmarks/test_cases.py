from collections import Counter

import numpy as np
import pytest
import torch

from benchmarks import cases
from benchmarks.case import Case, Measure
from benchmarks.cases import world
from benchmarks.competitors import COMPETITORS, WARM
from tests.models import zoo

ALL = [(family, case) for family, members in cases.FAMILIES.items() for case in members]


def test_names_tell_cases_apart() -> None:
    assert [
        name for name, count in Counter(case.name for _, case in ALL).items() if count > 1
    ] == []


@pytest.mark.parametrize("case", [case for _, case in ALL], ids=lambda case: case.name)
def test_what_is_asked_is_measured(case: Case) -> None:
    for name in case.competitors:
        assert name.removesuffix(WARM) in COMPETITORS
        assert not name.endswith(WARM) or case.measure is Measure.START
        assert _of_framework(case, name) is not None
    for asked in case.asked:
        assert {asked.competitor, *asked.against} <= set(case.competitors)


def _of_framework(case: Case, name: str) -> object:
    """The work of a case in the framework of a competitor."""
    module = COMPETITORS[name.removesuffix(WARM)].module
    return {"jax_jit": case.jax, "tf_function": case.tensorflow}.get(module, case.torch)


def test_the_suite_is_of_families_that_have_what_is_compared() -> None:
    needed = {cases.SUITE.asked.competitor, *cases.SUITE.asked.against}
    for family in cases.SUITE.families:
        for case in cases.FAMILIES[family]:
            assert needed <= set(case.competitors)
            assert case.measure is Measure.CALL


def test_the_world_has_every_architecture_of_the_zoo_in_every_form() -> None:
    assert set(world.architectures()) == set(zoo.MODELS)
    assert cases.WORLD == world.FORMS
    assert all(len(cases.FAMILIES[form]) == len(zoo.MODELS) for form in world.FORMS)


@pytest.mark.parametrize("form", world.FORMS)
def test_work_of_the_world_is_wider_than_in_tests(form: str) -> None:
    case = cases.find(f"bert, {form}")
    assert case.torch is not None
    work = case.torch()
    assert work.training is form.startswith("training")
    (inputs,) = work.inputs
    assert inputs["input_ids"].shape == (8, 64)
    weights = dict(work.function.named_parameters())
    weight = weights["inner.bert.encoder.layer.0.attention.self.query.weight"]
    assert weight.shape == (256, 256)
    assert weight.dtype == (torch.bfloat16 if "bf16" in form else torch.float32)
    result = work.function(inputs)
    if work.training:
        result.backward()
        assert weight.grad is not None
        assert bool(weight.grad.isfinite().all())
    else:
        assert bool(result["logits"].isfinite().all())


def test_an_unknown_case_is_an_error() -> None:
    with pytest.raises(KeyError, match="no case 'nothing'"):
        cases.find("nothing")


SMALL = [
    case
    for family, case in ALL
    if family in ("dispatch", "kernels") and "bf16" not in case.name and "500" not in case.name
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_work_gives_one_finite_tensor(case: Case) -> None:
    assert case.torch is not None
    work = case.torch()
    with torch.no_grad():
        found = work.function(*work.inputs)
    assert isinstance(found, torch.Tensor)
    assert bool(torch.isfinite(found).all())
    # The same each time it is made, so competitors compute the same.
    again = case.torch().inputs
    assert all(map(torch.equal, work.inputs, again)) or case in cases.FAMILIES["dispatch"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [case for family, case in ALL if family in ("blocks", "models", "training")],
    ids=lambda case: case.name,
)
def test_networks_run(case: Case) -> None:
    assert case.torch is not None
    work = case.torch()
    with torch.set_grad_enabled(work.training):
        found = work.function(*work.inputs)
    if work.training:
        assert found.shape == ()
        found.backward()
        assert any(item.grad is not None for item in work.function.parameters())


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("case", cases.FAMILIES["tensorflow"], ids=lambda case: case.name)
def test_competitors_of_tensorflow_compute_the_same(case: Case) -> None:
    pytest.importorskip("tensorflow")
    from benchmarks.competitors.tf_function import function_of

    assert case.tensorflow is not None
    found = []
    for name in case.competitors:
        work = case.tensorflow()
        function = function_of(work, name)
        # Twice: the second loss of a step shows what the first has updated.
        function(*work.inputs)
        found.append(function(*work.inputs).numpy())
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-4, atol=1e-5)
