"""A folder of blobs: bounded, shared by processes, never in the way, and of one user."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.errors import BridgeWarning
from pjrt_bridge.runtime.compile.cache import Cache


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_BRIDGE_CACHE")


def age(cache: Cache, key: str, seconds: float) -> None:
    """Let an entry be as if it had been used so long ago."""
    then = time.time() - seconds
    os.utime(cache.folder / f"{key}.entry", (then, then))


def test_what_is_put_is_got(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "folder", 1000)
    assert cache.get("a") is None
    assert cache.put("a", b"one")
    assert cache.put("b", b"")
    assert cache.put("a", b"two")
    assert (cache.get("a"), cache.get("b")) == (b"two", b"")
    assert Cache(cache.folder, 1000).get("a") == b"two"
    assert {entry.key: entry.size for entry in cache.entries()} == {"a": 3, "b": 0}


def test_what_was_not_used_longest_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 100)
    for index, key in enumerate("abcd"):
        cache.put(key, bytes(24))
        age(cache, key, 100 - index)
    assert cache.get("a") == bytes(24)
    cache.put("e", bytes(24))
    assert {entry.key for entry in cache.entries()} == {"a", "c", "d", "e"}
    assert cache.entries()[-1].key == "c"


def test_what_is_larger_than_the_limit_is_not_stored(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 10)
    assert cache.put("a", bytes(10))
    assert not cache.put("b", bytes(11))
    assert [entry.key for entry in cache.entries()] == ["a"]


def test_clearing(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    cache.put("a", b"1")
    cache.put("b", b"2")
    (tmp_path / "left.new").write_bytes(b"half")
    (tmp_path / "README").write_text("somebody's")
    assert cache.clear() == 2
    assert [path.name for path in tmp_path.iterdir()] == ["README"]
    assert Cache(tmp_path / "absent", 10).clear() == 0


def test_files_of_former_forms_go_when_it_is_cleared(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    name = "5e" * 32
    for former, content in ((name, "a" * 64), (f"{name}.blob", "b")):
        (tmp_path / former).write_text(content)
    (tmp_path / f"{name[:-1]}0").write_text("somebody's, with another size")
    assert not cache.is_empty
    assert cache.clear() == 2
    assert cache.is_empty
    assert [path.name for path in tmp_path.iterdir()] == [f"{name[:-1]}0"]


def test_an_entry_is_bound_to_its_key_and_its_bytes(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    cache.put("a", b"one")
    cache.put("b", b"two")
    path = tmp_path / "a.entry"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"one", b"eno"))
    assert cache.get("a") is None
    assert not path.exists()
    path.write_bytes((tmp_path / "b.entry").read_bytes())
    with pytest.warns(BridgeWarning, match="put in the place of another file"):
        assert cache.get("a") is None
    assert cache.get("b") == b"two"


def test_files_of_writers_that_died_are_swept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    for name, seconds in (("old.new", 7200), ("young.new", 10)):
        path = tmp_path / name
        path.write_bytes(b"half")
        then = time.time() - seconds
        os.utime(path, (then, then))
    cache.put("a", b"1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.entry", "young.new"]


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "folder", 1000)
    with pytest.warns(BridgeWarning, match="file is no folder"):
        assert not cache.put("a", b"1")
    assert cache.get("a") is None
    assert cache.entries() == []
    assert cache.clear() == 0


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 60)), max_size=30))
def test_it_is_never_much_over_its_limit_and_keeps_the_last(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[str, int]]
) -> None:
    cache = Cache(tmp_path_factory.mktemp("cache"), 128)
    for key, size in puts:
        assert cache.put(key, bytes(size))
        assert cache.get(key) == bytes(size)
        assert sum(entry.size for entry in cache.entries()) <= 128 + 128 // 32


WRITER = """
import sys
from pathlib import Path
from pjrt_bridge.runtime.compile.cache import Cache
cache = Cache(Path(sys.argv[1]), 4000)
for turn in range(200):
    key = str(turn % 7)
    cache.put(key, bytes([turn % 256]) * 1000)
    found = cache.get(key)
    assert found is None or (len(found) == 1000 and len(set(found)) == 1), found
"""


def test_processes_share_it_and_read_whole_blobs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors.decode()
    cache = Cache(tmp_path, 4000)
    cache.put("last", b"1")
    assert sum(entry.size for entry in cache.entries()) <= 5000


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no user ids")
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 1000)
    assert cache.put("a", b"1")
    cache.folder.chmod(0o777)
    with pytest.warns(BridgeWarning, match="chmod 700"):
        assert cache.get("a") is None
    # A second warning would be an error here.
    assert not cache.put("b", b"2")
    assert cache.entries() == []
    assert cache.clear() == 0
    assert [path.name for path in cache.folder.iterdir()] == ["a.entry"]
    cache.folder.chmod(0o700)
    assert cache.get("a") == b"1"
