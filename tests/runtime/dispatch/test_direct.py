"""Direct calls: what they serve, that nothing is lost there, and what goes the other way."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pjrt_bridge import timeline
from pjrt_bridge.errors import (
    BufferUnavailable,
    Closed,
    DataError,
    Internal,
    SignatureMismatch,
    UnsupportedDtype,
)
from pjrt_bridge.runtime import Client, Executable, native
from pjrt_bridge.runtime.dispatch import outputs
from pjrt_bridge.runtime.ownership.exit import live
from tests import programs
from tests.conftest import Census
from tests.counting import resident, settled
from tests.forked import TORCH
from tests.plugins import require_dispatcher, run_python
from tests.runtime.ownership.pending import Pending

require_dispatcher()

ONES = np.ones(64, np.float32)


@pytest.fixture
def add(client: Client) -> Iterator[Executable]:
    """An executable that was called once: it is known how its results lie."""
    with client.compile(programs.ADD) as executable:
        executable(ONES, ONES)
        yield executable


def is_direct(result: Any) -> bool:
    return outputs.output_of(result) is not None


@pytest.mark.parametrize(
    "value",
    [ONES, np.ones(65, np.float32)[1:], np.ones((1, 64), np.float32)[0]],
    ids=["plain", "unaligned", "view"],
)
def test_arrays_that_lie_as_the_program_takes_them(
    no_leaks: Census, add: Executable, value: np.ndarray[Any, Any]
) -> None:
    (result,) = add(value, value)
    assert is_direct(result)
    assert np.asarray(result).tolist() == [2.0] * 64
    assert result.layout.row_major


class Framework:
    """An array of a framework that has DLPack alone."""

    def __init__(self, array: np.ndarray[Any, Any], refuses: bool = False) -> None:
        self.array, self.refuses = array, refuses

    def __dlpack__(self, **asked: Any) -> Any:
        if self.refuses:
            raise RuntimeError("not now")
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_arrays_of_frameworks_are_read_where_they_lie(no_leaks: Census, add: Executable) -> None:
    (result,) = add(Framework(ONES), Framework(2 * ONES))
    assert is_direct(result)
    assert np.asarray(result).tolist() == [3.0] * 64
    with pytest.raises(DataError, match="not now"):
        add(Framework(ONES), Framework(ONES, refuses=True))


def test_buffers_of_every_origin(no_leaks: Census, client: Client, add: Executable) -> None:
    put = client.put(ONES)
    (first,) = add(put, put)
    (second,) = add.execute([first, put])
    (third,) = add(first, np.asarray(second).copy())
    assert all(map(is_direct, (first, second, third)))
    assert [float(np.asarray(one)[63]) for one in (first, second, third)] == [2.0, 3.0, 5.0]
    assert first.block_until_ready() is first
    assert first.ready()


@pytest.mark.parametrize(
    "value",
    [
        np.ones(128, np.float32)[::2],
        np.ones(64, np.float32)[::-1],
        np.frombuffer(ONES.tobytes(), np.float32),
        memoryview(ONES),
    ],
    ids=["strided", "reversed", "read-only", "memoryview"],
)
def test_arrays_that_have_to_be_converted(no_leaks: Census, add: Executable, value: Any) -> None:
    assert np.asarray(add(value, ONES)[0]).tolist() == [2.0] * 64


@pytest.mark.parametrize(
    "value",
    [np.ones(64), np.ones(63, np.float32), np.ones((8, 8), np.float32), ONES.astype(">f4"), 1.0],
)
def test_arrays_that_are_refused(no_leaks: Census, add: Executable, value: Any) -> None:
    for arguments in ((value, ONES), (ONES, value)):
        with pytest.raises((SignatureMismatch, UnsupportedDtype), match="argument"):
            add(*arguments)
    assert np.asarray(add(ONES, ONES)[0]).tolist() == [2.0] * 64


def test_a_deleted_buffer_and_a_closed_executable(client: Client) -> None:
    census = Census()
    with client.compile(programs.ADD) as executable:
        (result,) = executable(ONES, ONES)
        (direct,) = executable(ONES, ONES)
        view = np.asarray(direct)
        for buffer in (client.put(ONES), result, direct):
            buffer.delete()
            for run in (executable, lambda *given: executable.execute(given)):
                with pytest.raises(BufferUnavailable, match="deleted"):
                    run(buffer, ONES if run is executable else buffer)
        assert view.tolist() == [2.0] * 64
    with pytest.raises(Closed, match="'add' was closed"):
        executable(ONES, ONES)
    del view, result, direct, buffer, run
    census.check()


def test_a_failure_of_an_argument_comes_with_the_result(client: Client, add: Executable) -> None:
    census = Census()
    value = Pending(client, ONES)
    (result,) = add(value.buffer, ONES)
    assert is_direct(result)
    value.fail("it broke")
    with pytest.raises(Internal, match="it broke"):
        np.asarray(result)
    del value, result
    census.check()


def test_starts_tell_of_their_end(no_leaks: Census, client: Client, add: Executable) -> None:
    value = Pending(client, ONES)
    (result,), end = add.start([value.buffer, value.buffer])
    assert is_direct(result)
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(end.wait)
        assert not waited.done()
        value.arrive()
        waited.result(60)
    assert np.asarray(result).tolist() == [2.0] * 64
    end.close()


def test_starts_whose_execution_fails(client: Client, add: Executable) -> None:
    census = Census()
    value = Pending(client, ONES)
    (result,), end = add.start([value.buffer, client.put(ONES)])
    assert is_direct(result)
    value.fail("it broke")
    with pytest.raises(Internal, match="it broke"):
        end.wait()
    end.close()
    del value, result, end
    census.check()


def test_starts_that_go_the_other_way(no_leaks: Census, client: Client) -> None:
    with client.compile(programs.ADD) as executable:
        # It is not known yet how its results lie.
        (result,), end = executable.start([client.put(ONES), client.put(ONES)])
        assert not is_direct(result)
        end.wait()
        end.close()
        assert np.asarray(result).tolist() == [2.0] * 64


def test_arrays_are_kept_until_the_program_has_read_them(client: Client) -> None:
    census = Census()
    with client.compile(programs.ADD) as executable:
        executable(ONES, ONES)
        value = Pending(client, ONES)
        given = np.full(64, 41, np.float32)
        (result,) = executable(value.buffer, given)
        assert is_direct(result)
        del given
        churn = [np.full(64, 7, np.float32) for _ in range(100)]
        value.arrive()
        assert np.asarray(result).tolist() == [42.0] * 64
        del value, result, churn
    census.check()


def test_results_dropped_before_they_are_there(client: Client) -> None:
    census = Census()
    with client.compile(programs.SLOW) as slow:
        big = np.ones((512, 512), np.float32)
        for _ in range(4):
            slow(big)
    census.check()


def test_donated_arguments_go_the_other_way(client: Client) -> None:
    with client.compile(programs.ALIASED_ADD) as executable:
        for _ in range(2):
            given = client.put(ONES, copy=True)
            (result,) = executable.execute([given, client.put(ONES)])
            assert not is_direct(result)
            with pytest.raises(BufferUnavailable, match="donated"):
                np.asarray(given)


@pytest.mark.parametrize("donate", [0, "", {}, [1]], ids=repr)
def test_what_cannot_be_donated_is_refused(client: Client, add: Executable, donate: Any) -> None:
    buffers = [client.put(ONES), client.put(ONES)]
    with pytest.raises(SignatureMismatch, match="donate"):
        add.execute(buffers, donate=donate)
    assert is_direct(add.execute(buffers, donate=[])[0])


def test_a_profile_has_each_launch(add: Executable) -> None:
    with timeline.recording() as recorded:
        (result,) = add(ONES, ONES)
    assert not is_direct(result)
    assert "launch add" in [span.name for span in recorded.spans]


def test_another_program_takes_over(client: Client, add: Executable) -> None:
    with client.compile(programs.ADD) as other:
        add.take_over(other)
        for _ in range(2):
            (result,) = add(ONES, ONES)
            assert np.asarray(result).tolist() == [2.0] * 64
        assert is_direct(result)


def test_ten_thousand_calls_leave_nothing(no_leaks: Census, add: Executable) -> None:
    def call() -> None:
        (result,) = add(ONES, ONES)
        np.asarray(add.execute([result, result])[0])

    for _ in range(500):
        call()
    alive, before = settled(), resident()
    for _ in range(5_000):
        call()
    assert live() == alive
    assert resident() - before < 4 << 20


def test_threads_while_it_is_closed(client: Client) -> None:
    census = Census()
    for _ in range(20):
        executable = client.compile(programs.ADD)
        executable(ONES, ONES)

        def work(_: int, executable: Executable = executable) -> bool:
            try:
                for _ in range(100):
                    assert np.asarray(executable(ONES, ONES)[0])[63] == 2
            except Closed:
                return True
            return False

        with ThreadPoolExecutor(4) as pool:
            found = pool.map(work, range(4))
            executable.close()
            list(found)
        del executable, work, found
    census.check()


def test_a_forked_child_is_told() -> None:
    run_python(
        """
import os, signal, numpy
client = cpu_plugin().client({"cpu_device_count": 1})
add = client.compile(programs.ADD)
ones = numpy.ones(64, numpy.float32)
add(ones, ones)
(result,) = add(ones, ones)
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    try:
        add(ones, ones)
    except ForkedProcess:
        del result
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
assert numpy.asarray(add(ones, result)[0]).tolist() == [3.0] * 64
""",
        imported=[TORCH],
    )


def test_without_the_compiled_module(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "module", None)
    with client.compile(programs.ADD) as executable:
        for _ in range(2):
            (result,) = executable(ONES, ONES)
            assert not is_direct(result)
            assert np.asarray(result).tolist() == [2.0] * 64
