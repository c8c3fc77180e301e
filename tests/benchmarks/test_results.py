import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.case import Asked, Suite
from benchmarks.figure import Figure
from benchmarks.results import Outcome, Report, Result, base_of, shown

BETTER = ("eager", "inductor")
SUITE = Suite("the suite", ("kernels", "models"), Asked("pjrt", 1.0, BETTER))
SLOWEST = Suite("models", ("models",), Asked("pjrt", 0.9, BETTER), slowest=1.2)
SECONDS = st.floats(1e-7, 1e3)
OUTCOMES = st.one_of(
    st.builds(
        Outcome,
        st.lists(SECONDS, min_size=1, max_size=4).map(tuple),
        peak=st.none() | st.integers(1, 10**12),
    ),
    st.text().map(lambda reason: Outcome(status="absent", reason=reason)),
)
NAMES = st.sampled_from(["eager", "inductor", "pjrt", "jax"])
RESULTS = st.builds(
    Result,
    case=st.text(),
    family=st.sampled_from(["dispatch", "kernels", "models"]),
    measure=st.just("a call"),
    unit=st.just("s"),
    outcomes=st.dictionaries(NAMES, OUTCOMES),
    asked=st.lists(
        st.builds(Asked, NAMES, SECONDS, st.lists(NAMES, min_size=1).map(tuple)), max_size=2
    ).map(tuple),
)
FIGURES = st.builds(Figure, st.text(), SECONDS, SECONDS, st.just("x"), st.text())
REPORTS = st.builds(
    Report,
    machine=st.dictionaries(st.text(), st.text()),
    results=st.lists(RESULTS, max_size=3).map(tuple),
    figures=st.lists(FIGURES, max_size=2).map(tuple),
    failures=st.dictionaries(st.text(), st.text(), max_size=2),
    suites=st.sampled_from([(SUITE,), (SUITE, SLOWEST), ()]),
    seconds=SECONDS,
)


def result(family: str = "models", asked: tuple[Asked, ...] = (), **seconds: float) -> Result:
    outcomes = {name: Outcome((value,)) for name, value in seconds.items()}
    return Result(f"a case of {family}", family, "a call", "s", outcomes, asked)


@given(REPORTS)
def test_json_and_back(report: Report) -> None:
    assert Report.from_json(report.to_json()) == report


def test_cases_of_one_name_are_cases_each() -> None:
    suite = Suite("models", ("models",), asked := Asked("pjrt", 0.9, ("eager",)), slowest=1.2)
    several = (result(pjrt=3.0, eager=2.0), result(pjrt=1.0, eager=2.0), result(eager=2.0))
    report = Report({}, several, suites=(suite,))
    assert [item.ratio(asked.competitor, asked.against) for item in several] == [1.5, 0.5, None]
    slowest = next(item for item in report.verdicts() if "slowest" in item.what)
    assert (slowest.found, slowest.sides) == (1.5, "a case of models; 1 of 2 cases are above")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": 1}', '{"results": [{}]}'])
def test_other_json_is_no_report(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Report.from_json(text)


@pytest.mark.parametrize(("limit", "met"), [(1.6, True), (1.5, True), (1.4, False)])
def test_a_verdict_is_about_the_better_of_the_others(limit: float, met: bool) -> None:
    asked = Asked("pjrt", limit, ("eager", "inductor"))
    (verdict,) = result(asked=(asked,), pjrt=3.0, eager=9.0, inductor=2.0).verdicts()
    assert verdict.found == 1.5
    assert verdict.met is met
    assert verdict.sides == "pjrt 3.00 s, eager 9.00 s, inductor 2.00 s"


def test_what_is_missing_makes_a_verdict_unknown_and_is_named() -> None:
    asked = Asked("pjrt", 1.0, ("eager", "inductor"))
    found = Result(
        "case",
        "models",
        "a call",
        "s",
        {"pjrt": Outcome((1e-3,)), "eager": Outcome(status="failed", reason="it died")},
        (asked,),
    )
    (verdict,) = found.verdicts()
    assert verdict.met is None
    assert verdict.sides == "pjrt 1.00 ms, eager failed, inductor not measured"


@given(st.floats(0.1, 10), st.lists(SECONDS, min_size=1, max_size=5))
def test_the_mean_of_equal_ratios_is_that_ratio(ratio: float, bases: list[float]) -> None:
    results = [result(pjrt=ratio * base, eager=base, inductor=2 * base) for base in bases]
    report = Report({}, [*results, result("dispatch", pjrt=9.0, eager=1.0)], suites=[SUITE])
    mean, count = report.means()["the suite"]
    assert math.isclose(mean, ratio)
    assert count == len(bases)
    assert "dispatch" not in report.means()
    (verdict,) = report.verdicts()
    assert verdict.found == mean


def test_a_mean_that_nothing_is_known_of_is_not_reached() -> None:
    report = Report({}, [result(pjrt=1.0)], suites=[SUITE])
    (verdict,) = report.verdicts()
    assert (verdict.found, verdict.met) == (None, None)


def test_without_cases_of_the_suite_nothing_is_asked_of_it() -> None:
    assert Report({}, [result("dispatch", pjrt=1.0, eager=1.0)], suites=[SUITE]).verdicts() == []


def test_the_slowest_case_of_a_suite_is_named_with_how_many_are_above() -> None:
    ratios = {"a": 1.5, "b": 1.3, "c": 0.5}
    results = [
        replace(result(pjrt=ratio, eager=1.0, inductor=2.0), case=case)
        for case, ratio in ratios.items()
    ]
    failed = Result("d", "models", "a call", "s", {"pjrt": Outcome(status="failed")})
    mean, slowest = Report({}, [*results, failed], suites=[SLOWEST]).verdicts()
    assert mean.sides == "over 3 cases of models; 1 without a number"
    assert (slowest.found, slowest.asked, slowest.met) == (1.5, 1.2, False)
    assert slowest.sides == "a; 2 of 3 cases are above"


def test_memory_is_a_ratio_of_peaks_where_both_are_known() -> None:
    outcomes = {"pjrt": Outcome((1.0,), peak=300), "eager": Outcome((1.0,), peak=200)}
    found = Result("case", "models", "a call", "s", outcomes)
    assert found.memory("pjrt", "eager") == 1.5
    assert found.memory("pjrt", "inductor") is None
    assert result(pjrt=1.0, eager=1.0).memory("pjrt", "eager") is None


def test_each_framework_is_shown_beside_its_own() -> None:
    tensorflow = Result(
        "case", "tensorflow", "a call", "s", {"tf.function": Outcome(), "tf_interop": Outcome()}
    )
    assert base_of([tensorflow]) == "tf.function"
    assert base_of([result(pjrt=1.0, eager=2.0)]) == "eager"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(2.5, "s", "2.50 s"), (2.5e-3, "s", "2.50 ms"), (25e-6, "s", "25.0 us"), (3e8, "B", "300 MB")],
)
def test_units_suit_the_number(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text
