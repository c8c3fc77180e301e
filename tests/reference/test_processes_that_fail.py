"""Processes of one client that are late, missing, die or disagree: each survivor raises in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reference.ranks import run_ranks


def test_a_late_process_is_waited_for(tmp_path: Path) -> None:
    found = run_ranks(
        """
time.sleep(0.6 * RANK)
client = reference(store, timeout=10)
executable = compiled(client, all_reduce())
time.sleep(0.4 * (1 - RANK))
print(json.dumps(run(client, executable, 1)))
""",
        2,
        tmp_path,
    )
    assert found == [[[3.0] * 3]] * 2


def test_a_missing_process_is_named_in_time(tmp_path: Path) -> None:
    found = run_ranks(
        """
text, seconds = "", 0
if RANK < 2:
    meet("start", 0, 1)
    text, seconds = failure(lambda: reference(store, timeout=0.6))
print(json.dumps([text, seconds]))
""",
        3,
        tmp_path,
    )
    for rank, (text, seconds) in enumerate(found[:2]):
        assert "DeadlineExceeded" in text or "has left" in text
        assert f"process {rank} of 3 wait" in text
        assert "devices of process" in text
        assert seconds < 5
    assert any("process 2: found nothing within 0.6 s" in text for text, _ in found)


def test_processes_meet_after_an_attempt_that_failed(tmp_path: Path) -> None:
    """A process that gave up says so, and the late one does not take its word for presence."""
    found = run_ranks(
        """
first = None
if RANK == 1:
    while store.try_get("reference/0/left/0") is None:
        time.sleep(0.01)
first, seconds = failure(lambda: reference(store, timeout=0.5 if RANK == 0 else 10))
client = reference(store, timeout=10)
print(json.dumps([first, seconds, run(client, compiled(client, all_reduce()), 1)]))
""",
        2,
        tmp_path,
    )
    assert "DEADLINE_EXCEEDED" in found[0][0]
    assert [each[2] for each in found] == [[[3.0] * 3]] * 2


def test_a_process_that_dies_is_named_by_each_survivor_in_time(tmp_path: Path) -> None:
    found = run_ranks(
        """
meet("start")
client = reference(store, timeout=1)
pairs = [compiled(client, all_reduce(), pair) for pair in ((0, 2), (1, 2)) if RANK in pair]
meet("compiled")
before = [run(client, each, 1) for each in pairs]
if RANK == 2:
    os.kill(os.getpid(), signal.SIGKILL)
text, seconds = failure(lambda: run(client, pairs[0], 1))
one = client.compile(IDENTITY)
alone = float(one(np.float32(7))[0].to_numpy())
after, _ = failure(lambda: run(client, pairs[0], 1))
print(json.dumps([text, seconds, after, alone, client.lost]))
""",
        3,
        tmp_path,
        dying=[2],
    )
    for rank, (text, seconds, after, alone, lost) in enumerate(found[:2]):
        assert "DEADLINE_EXCEEDED" in text
        assert f"process {rank} of 3 waited for the arguments of execution 1 of 'main'" in text
        assert "of process 2: found nothing within 1 s (process_timeout_ms)" in text
        assert 0.9 < seconds < 10
        assert "have lost each other" in after
        assert alone == 7.0
        assert "could not be started on all of its 2 devices" in lost


def test_a_process_that_ends_its_client_is_not_waited_for(tmp_path: Path) -> None:
    found = run_ranks(
        """
client = reference(store, timeout=25)
executable = compiled(client, all_reduce())
run(client, executable, 1)
if RANK == 1:
    client.close()
    print("null")
else:
    print(json.dumps(failure(lambda: run(client, executable, 1))))
""",
        2,
        tmp_path,
    )
    text, seconds = found[0]
    assert "UNAVAILABLE" in text
    assert "process 1, which has left: process 1 has ended its client" in text
    assert seconds < 10


def test_processes_that_disagree_on_the_program(tmp_path: Path) -> None:
    found = run_ranks(
        """
client = reference(store)
train, evaluate = (compiled(client, all_reduce(name=name)) for name in ("train", "evaluate"))
text, _ = failure(lambda: run(client, evaluate if RANK else train, 1))
print(json.dumps([text, run(client, train, 1)]))
""",
        2,
        tmp_path,
    )
    for rank, (text, again) in enumerate(found):
        names = ["train", "evaluate"]
        assert "INVALID_ARGUMENT: the processes disagree on execution 0" in text
        assert f"process {1 - rank} runs '{names[1 - rank]}' (fingerprint" in text
        assert f"process {rank} runs '{names[rank]}'" in text
        assert again == [[3.0] * 3]


def test_what_one_process_cannot_start_the_other_does_not_wait_for(tmp_path: Path) -> None:
    found = run_ranks(
        """
limit = {"memory_limit": 1000} if RANK else {}
client = reference(store, timeout=25, **limit)
executable = compiled(client, all_reduce())
if RANK:
    filling = [client.put(np.zeros(245, np.float32))]
    argument = client.put(np.ones(3, np.float32))
    print(json.dumps([*failure(lambda: executable.execute([argument])), client.lost]))
else:
    print(json.dumps([*failure(lambda: run(client, executable, 1)), client.lost]))
""",
        2,
        tmp_path,
    )
    assert "out of memory" in found[1][0]
    assert "could not be started on all of its 2 devices" in found[1][2]
    assert "process 1, which has left: out of memory" in found[0][0]
    assert found[0][1] < 10


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (
            "TimeoutError('no answer')",
            "waited for the devices of process 0: found nothing within 0.5 s",
        ),
        ("ConnectionError('it is down')", "UNAVAILABLE: process 0 of 2: the key-value store"),
        ("KeyError('lost')", "INTERNAL: process 0 of 2: the key-value store failed: key"),
    ],
)
def test_a_store_that_fails(tmp_path: Path, raised: str, expected: str) -> None:
    found = run_ranks(
        f"""
class Failing(FolderStore):
    def get(self, key, timeout):
        raise {raised}
if RANK == 0:
    store = Failing(store._folder)
print(json.dumps(failure(lambda: reference(store, timeout=0.5))))
""",
        2,
        tmp_path,
    )
    text, seconds = found[0]
    assert text is not None
    assert expected in text
    assert seconds < 5
