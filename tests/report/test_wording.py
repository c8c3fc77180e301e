"""Numbers and texts formatted for people."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pjrt_bridge.report import wording


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (4096, "4.1 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (1_254_000, "1.25 MB"),
        (10**18, "1000 PB"),
    ],
)
def test_bytes(count: int, shown: str) -> None:
    assert wording.byte_size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"),
        (2e-7, "0.2 us"),
        (0.00004, "40 us"),
        (0.0009996, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.9996, "1 s"),
        (1234.5, "1234 s"),
    ],
)
def test_durations(seconds: float, shown: str) -> None:
    assert wording.duration(seconds) == shown


@given(st.integers(0, 10**6), st.integers(0, 10**6))
@example(1, 10**6)
@example(10**6, 1)
@example(0, 5)
@example(5, 0)
def test_a_share_is_whole_or_nothing_only_if_it_is(part: int, rest: int) -> None:
    assume(part + rest > 0)
    percent = float(wording.share(part, part + rest).removesuffix(" %"))
    assert (percent == 100) == (rest == 0)
    assert (percent == 0) == (part == 0)
    assert abs(percent - 100 * part / (part + rest)) <= 0.5


@given(st.text())
def test_printable_text_is_one_line_and_stays_as_it_is(content: str) -> None:
    line = wording.printable(content)
    assert line.isprintable()
    assert wording.printable(line) == line
    if content.isprintable() and "  " not in content:
        assert line == content.strip(" ")


def test_a_setting_is_not_cut() -> None:
    line = "Enable it with `torch._dynamo.config.capture_scalar_outputs = True` or otherwise."
    for length in range(3, len(line) + 3):
        short = wording.clip(line, length)
        assert len(short) <= length
        assert "`" not in short or "`torch._dynamo.config.capture_scalar_outputs = True`" in short


@pytest.mark.parametrize(
    ("count", "shown"), [(0.0, "0"), (12, "12"), (87.9e12, "87.9 tera"), (1.25e9, "1.25 giga")]
)
def test_numbers_of_operations(count: float, shown: str) -> None:
    assert wording.magnitude(count) == shown
