"""Spans are kept while someone looks, from every thread, and not otherwise."""

import threading
import time

import pytest

from pjrt_bridge import timeline


def test_nothing_is_kept_when_nobody_looks() -> None:
    assert timeline.current is None
    with timeline.span("nothing"):
        assert timeline.current is None


def test_spans_have_times_of_the_wall_clock_and_details() -> None:
    before = time.time_ns()
    with timeline.recording() as found, timeline.span("work", size=3):
        time.sleep(0.01)
    (span,) = found.spans
    assert (span.name, span.track, dict(span.details)) == ("work", "MainThread", {"size": 3})
    assert before - 1_000_000 <= span.start <= span.end - 10_000_000
    assert timeline.current is None


def test_a_span_that_raises_is_kept_and_recording_ends() -> None:
    with pytest.raises(KeyError), timeline.recording() as found, timeline.span("breaks"):
        raise KeyError("lost")
    assert [span.name for span in found.spans] == ["breaks"]
    assert timeline.current is None


def test_who_looks_is_told_apart_and_forgotten() -> None:
    assert timeline.observers == []
    with timeline.recording() as recorded, timeline.observing("me"):
        assert timeline.observers == [recorded, "me"]
    with pytest.raises(KeyError), timeline.observing("me"):
        raise KeyError("lost")
    assert timeline.observers == []


def test_threads_have_tracks_of_their_own() -> None:
    def work() -> None:
        with timeline.span("elsewhere"):
            pass

    with timeline.recording() as found:
        thread = threading.Thread(target=work, name="worker")
        thread.start()
        thread.join()
        with timeline.span("here", track="device cpu"):
            pass
    assert [(span.name, span.track) for span in found.spans] == [
        ("elsewhere", "worker"),
        ("here", "device cpu"),
    ]


def test_one_at_a_time() -> None:
    with (
        timeline.recording() as outer,
        pytest.raises(RuntimeError, match="already"),
        timeline.recording(),
    ):
        pass
    assert outer.spans == []
    with timeline.recording():
        assert timeline.current is not None
