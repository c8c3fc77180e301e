import pytest

from benchmarks import figures
from benchmarks.processes import Missing


def test_a_family_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FAMILIES", {"nothing": 1})
    with pytest.raises(Missing, match=r"benchmarks\.nothing"):
        list(figures.measure("nothing", 1))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("family", "count"),
    [
        ("first_call", 2),
        ("mixed", 9),
        ("tracing", 2),
        ("caching", 1),
        ("exporting", 3),
        ("generation", 1),
        ("meshes", 2),
        ("distributed", 3),
    ],
)
def test_all_figures_come(family: str, count: int) -> None:
    found = list(figures.measure(family, 1))
    assert len(found) == count
    assert all(figure.found > 0 for figure in found)
