"""What the project says that it covers is what it covers, and enough."""

import pytest

from tests.coverage import operators, page
from tests.models import expectations as models
from tests.opinfo import expectations as opinfo


def test_the_page_is_what_the_files_say() -> None:
    assert page.PAGE.read_text() == page.text(), "run python -m tests.coverage"


def test_every_operator_of_real_models_has_a_lowering() -> None:
    missing = [name for name in operators.needed_by_models() if not operators.has_lowering(name)]
    assert missing == []


def test_core_overloads_that_reach_the_backend_have_a_lowering() -> None:
    fates = operators.core()
    assert [name for name, fate in fates.items() if fate == "missing"] == []


@pytest.mark.parametrize(("direction", "least"), [("forward", 0.95), ("backward", 0.92)])
def test_the_operator_database_runs_on_the_device(direction: str, least: float) -> None:
    counts = page.shares(opinfo.load(), "float32", direction)
    assert counts["device"] / page.possible(counts) >= least


def test_models() -> None:
    cases = models.load()
    for mode in ("inference", "training"):
        found = {case.model for case in cases if case.mode.startswith(mode)}
        assert len(found) >= 40
