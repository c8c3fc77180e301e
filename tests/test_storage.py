"""Files that are kept for later processes: of one user, whole, and none where none are wanted."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest

from pjrt_bridge import storage
from pjrt_bridge.errors import BridgeWarning
from tests.plugins import cpu_library

LIMIT = 1000

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no user ids")


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setattr(storage, "_warned", set())
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(tmp_path / "above" / "cache"))
    before = os.umask(0o002)
    yield tmp_path / "above" / "cache"
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def kept(name: str = "kind") -> Path:
    folder = storage.cache_folder(name)
    assert folder is not None
    return folder / "file"


def test_folders_and_files_are_made_for_the_user_alone(root: Path) -> None:
    path = kept()
    assert storage.write(path, b"data")
    assert storage.read(path, LIMIT) == b"data"
    assert [mode(made) for made in (root.parent, root, path.parent)] == [0o700] * 3
    assert mode(path) == 0o600
    assert [found.name for found in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("which", ["root", "folder"])
@pytest.mark.parametrize("bits", [0o770, 0o702, 0o775, 0o777, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(root: Path, which: str, bits: int) -> None:
    path = kept()
    assert storage.write(path, b"data")
    bad = root if which == "root" else path.parent
    bad.chmod(bits)
    with pytest.warns(BridgeWarning) as said:
        assert storage.read(path, LIMIT) is None
    # A second warning would be an error here.
    assert not storage.write(path, b"other")
    assert not storage.write(path.with_name("another"), b"other")
    (text,) = (str(item.message) for item in said)
    assert f"{bad} has mode {bits:04o}, so others can write to it" in text
    assert f"run `chmod 700 {bad}`" in text
    assert "PJRT_BRIDGE_CACHE=off" in text
    assert [found.name for found in path.parent.iterdir()] == ["file"]
    bad.chmod(0o755)
    assert storage.read(path, LIMIT) == b"data"


def test_what_lies_below_a_folder_that_others_can_write_to_is_not_made(root: Path) -> None:
    root.mkdir(parents=True)
    root.chmod(0o775)
    with pytest.warns(BridgeWarning, match="has mode 0775"):
        assert not storage.write(kept(), b"data")
    assert list(root.iterdir()) == []


def test_a_folder_of_another_user_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.write(kept(), b"data")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 12345)
    with pytest.warns(BridgeWarning, match=f"{root} belongs to user .+, expected a folder of"):
        assert storage.read(kept(), LIMIT) is None
    assert not storage.write(kept("other"), b"data")


def test_a_folder_that_anybody_can_replace_is_refused(root: Path) -> None:
    assert storage.write(kept(), b"data")
    root.parent.chmod(0o777)
    with pytest.warns(BridgeWarning, match="mode 0777, so everybody can replace what is in it"):
        assert storage.read(kept(), LIMIT) is None
    # As /tmp is: only who made something may rename it.
    root.parent.chmod(0o1777)
    assert storage.read(kept(), LIMIT) == b"data"


def test_a_link_of_the_user_is_followed_and_looked_behind(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage.write(kept(), b"data")
    link = tmp_path / "link"
    link.symlink_to(root)
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(link))
    assert storage.read(kept(), LIMIT) == b"data"
    root.chmod(0o777)
    with pytest.warns(BridgeWarning, match=f"{root} has mode 0777"):
        assert storage.read(kept(), LIMIT) is None


@pytest.mark.skipif(getattr(os, "geteuid", int)() != 0, reason="only root gives links away")
def test_a_link_of_another_user_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage.write(kept(), b"data")
    link = tmp_path / "link"
    link.symlink_to(root)
    os.chown(link, 54321, -1, follow_symlinks=False)
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(link))
    with pytest.warns(BridgeWarning, match=f"{link} is a symbolic link of user 54321"):
        assert storage.read(kept(), LIMIT) is None


def test_a_file_that_others_could_have_written_is_not_read(root: Path, tmp_path: Path) -> None:
    path = kept()
    assert storage.write(path, b"data")
    path.chmod(0o666)
    with pytest.warns(BridgeWarning, match=f"{path} is not used: it has mode 0666"):
        assert storage.read(path, LIMIT) is None
    # A second warning would be an error here.
    assert storage.read(path, LIMIT) is None
    path.unlink()
    (tmp_path / "elsewhere").write_bytes(b"data")
    path = path.with_name("link")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(BridgeWarning, match="link is not used: it cannot be opened"):
        assert storage.read(path, LIMIT) is None
    # It is replaced as any other one.
    assert storage.write(path, b"new")
    assert storage.read(path, LIMIT) == b"new"
    assert (tmp_path / "elsewhere").read_bytes() == b"data"


def test_what_is_no_regular_file_is_not_read(root: Path) -> None:
    path = kept()
    assert storage.write(path.with_name("other"), b"data")
    os.mkfifo(path, 0o600)
    with pytest.warns(BridgeWarning, match="it is no regular file; expected a regular file of"):
        assert storage.read(path, LIMIT) is None
    assert storage.write(path, b"new")
    assert storage.read(path, LIMIT) == b"new"
    folder = path.with_name("folder")
    folder.mkdir(0o700)
    with pytest.warns(BridgeWarning, match="it is no regular file"):
        assert storage.read(folder, LIMIT) is None
    assert storage.read(folder / "file" / "below", LIMIT) is None


@pytest.mark.skipif(getattr(os, "geteuid", int)() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_not_read(root: Path) -> None:
    assert storage.write(kept(), b"data")
    os.chown(kept(), 54321, -1)
    with pytest.warns(BridgeWarning, match="it belongs to user 54321"):
        assert storage.read(kept(), LIMIT) is None


def test_a_file_that_is_too_large_is_not_read(root: Path) -> None:
    assert storage.write(kept(), b"")
    os.truncate(kept(), 6_000_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.warns(BridgeWarning, match="has 6000000000 bytes; .* of at most 1000 bytes"):
        assert storage.read(kept(), LIMIT) is None
    os.truncate(kept(), LIMIT + 1)
    assert storage.read(kept(), LIMIT) is None
    os.truncate(kept(), LIMIT)
    assert storage.read(kept(), LIMIT) == bytes(LIMIT)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_a_file_that_begins_otherwise_is_not_read(root: Path) -> None:
    assert storage.write(kept(), b"key data")
    assert storage.read(kept(), LIMIT, start=b"key ") == b"data"
    with pytest.warns(BridgeWarning, match="put in the place of another file"):
        assert storage.read(kept(), LIMIT, start=b"yek ") is None


@pytest.mark.parametrize("value", ["off", "OFF", "0", "no", "false", " off "])
def test_off_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", value)
    assert storage.cache_folder("kind") is None
    assert not storage.write(tmp_path / "file", b"data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["/dev/null", "file"])
def test_what_is_no_folder_is_said_to_be_none(root: Path, name: str) -> None:
    root.mkdir(mode=0o700, parents=True)
    (root / "file").touch(mode=0o600)
    found = storage.objection(root / name / "below") or ""
    assert found.startswith(f"{root / name} is no folder, expected a folder ")
    assert "chmod" not in found


def test_where_the_folders_are_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_BRIDGE_CACHE")
    monkeypatch.delenv("PJRT_BRIDGE_CALIBRATION", raising=False)
    assert storage.cache_folder("kind") == platformdirs.user_cache_path("pjrt_bridge") / "kind"
    data = platformdirs.user_data_path("pjrt_bridge") / "calibration"
    assert storage.data_folder("calibration", "PJRT_BRIDGE_CALIBRATION") == data
    monkeypatch.setenv("PJRT_BRIDGE_CALIBRATION", str(tmp_path))
    assert storage.data_folder("calibration", "PJRT_BRIDGE_CALIBRATION") == tmp_path
    monkeypatch.setenv("PJRT_BRIDGE_CALIBRATION", "off")
    assert storage.data_folder("calibration", "PJRT_BRIDGE_CALIBRATION") is None


def test_systems_without_user_ids_compare_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir(parents=True)
    root.chmod(0o777)
    monkeypatch.delattr(os, "geteuid")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert storage.write(kept(), b"data")
        assert storage.read(kept(), LIMIT) == b"data"


PROGRAM = """
import sys
import numpy as np
import pjrt_bridge
from pjrt_bridge.runtime.compile import compile_cache

compile_cache.WORTH_STORING = 0
text = '''
func.func @main(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
    : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}
'''
executable = pjrt_bridge.client("cpu").compile(text)
print(executable.cached, executable(np.eye(64, dtype=np.float32))[0].to_numpy().sum())
"""

TORCH_PROGRAM = """
import torch
from pjrt_bridge import registry
from pjrt_bridge.torch_interop.placement import calibration

function = torch.compile(lambda x: torch.softmax(x @ x, -1), backend="pjrt", dynamic=False)
x = torch.randn(256, 256)
torch.testing.assert_close(function(x), torch.softmax(x @ x, -1), rtol=1e-4, atol=1e-4)
try:
    calibration.save(registry.client("cpu"), [])
except Exception as error:
    print(type(error).__name__, error)
"""


def run(
    program: str, home: Path, timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A process whose home, folder of temporary files and working folder are a new folder."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PJRT_", "XDG_", "TORCH"))
    }
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    own = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**plain, **own, **paths, **variables},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=True,
    )


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_process_that_keeps_nothing_writes_no_file(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert run(PROGRAM, home, PJRT_BRIDGE_CACHE="off").stdout.split() == ["False", "64.0"]
    assert files(home) == []


def test_a_torch_process_that_keeps_nothing_writes_no_file(tmp_path: Path) -> None:
    """Neither hashes of libraries, nor which kernels are right, nor measurements."""
    home = tmp_path / "home"
    done = run(TORCH_PROGRAM, home, PJRT_BRIDGE_CACHE="off", timeout=300)
    assert "OptionError measurements for plugin 'cpu' cannot be kept" in done.stdout
    assert "PJRT_BRIDGE_CACHE is off" in done.stdout
    assert files(home) == []


def test_a_process_keeps_its_files_in_folders_of_its_own(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert run(PROGRAM, home).stdout.split() == ["False", "64.0"]
    assert run(PROGRAM, home).stdout.split() == ["True", "64.0"]
    assert {name.split("/")[2] for name in files(home)} == {"executables", "libraries"}
    for path in (home / ".cache" / "pjrt_bridge").rglob("*"):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path
    # Somebody opens it for others: it is compiled again, and the process says why, once.
    (home / ".cache" / "pjrt_bridge").chmod(0o777)
    before = files(home)
    done = run(PROGRAM, home)
    assert done.stdout.split() == ["False", "64.0"]
    assert done.stderr.count("BridgeWarning") == 1
    assert "has mode 0777" in done.stderr
    assert files(home) == before


def test_the_library_is_hashed_anew_where_its_hash_was_spoilt(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pjrt_bridge.runtime.compile import identity

    identity.library_hash.cache_clear()
    good = identity.library_hash(cpu_library())
    (path,) = (root / "libraries").iterdir()
    kept_hash = path.read_bytes()
    path.write_bytes(b"")
    identity.library_hash.cache_clear()
    with pytest.warns(BridgeWarning, match="is damaged"):
        assert identity.library_hash(cpu_library()) == good
    assert path.read_bytes() == kept_hash
    # Another hash in its place would let programs for another build of the plugin run.
    path.write_bytes(kept_hash.replace(good.encode(), b"0" * 64))
    identity.library_hash.cache_clear()
    assert identity.library_hash(cpu_library()) == good
    assert path.read_bytes() == kept_hash
