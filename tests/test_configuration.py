"""What a user has set does not reach tests and sweeps."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest

from pjrt_bridge.runtime.compile.cache import Cache
from pjrt_bridge.runtime.compile.compile_cache import _PROGRAMS as PROGRAMS
from tests import configuration
from tests.opinfo.sweep import Sweep
from tests.sweeping.command import Sweeping, main

SET = {
    "PJRT_BRIDGE_ATEN": "off",
    "PJRT_BRIDGE_BACKGROUND": "on",
    "PJRT_BRIDGE_CACHE": "/the/users",
    "PJRT_BRIDGE_CALIBRATION": "/the/users",
    "PJRT_BRIDGE_PLUGIN": "another",
    "OMP_NUM_THREADS": "7",
    "TORCH_COMPILE_DISABLE": "1",
    "XLA_FLAGS": "--xla_cpu_enable_fast_math=true",
}


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ANOTHER", "kept")


@pytest.mark.usefixtures("user")
def test_variables_that_decide_are_taken_away_for_a_while() -> None:
    with configuration.isolated():
        left = {name: os.environ[name] for name in SET if name in os.environ}
        cache = Path(left.pop(configuration.CACHE))
        calibration = Path(left.pop(configuration.CALIBRATION))
        assert left.pop(configuration.BACKGROUND) == "off"
        assert left.pop(configuration.ATEN) == "always"
        assert not left
        assert cache.parent == calibration.parent
        assert cache.parent.is_dir()
        assert os.environ["ANOTHER"] == "kept"
    assert {name: os.environ[name] for name in SET} == SET
    assert not cache.parent.exists()


def test_what_is_to_be_kept_is(tmp_path: Path) -> None:
    with configuration.isolated():
        os.environ.update(SET)
        configuration.isolate(tmp_path, keep=("PJRT_BRIDGE_PLUGIN",))
        assert os.environ["PJRT_BRIDGE_PLUGIN"] == "another"
        assert "XLA_FLAGS" not in os.environ


def test_the_build_of_the_cpu_plugin_is_chosen_for_a_whole_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else sweeps that `tests/foreign` starts for another build would run the default one."""
    monkeypatch.setenv(configuration.BUILD, "lammps-jax-pjrt-cpu")
    with configuration.isolated():
        assert os.environ[configuration.BUILD] == "lammps-jax-pjrt-cpu"


def test_this_run_is_isolated() -> None:
    for name in configuration.SWITCHES:
        assert os.environ.get(name, "") != "off"
    folder = Path(os.environ[configuration.CACHE]).parent
    assert folder.name.startswith("pjrt_bridge-tests-")
    assert not list((folder / "calibration").glob("*"))


def test_programs_are_kept_for_later_runs_and_nothing_else(tmp_path: Path) -> None:
    run, later = tmp_path / "run", tmp_path / "later"
    for folder in (run, later):
        folder.mkdir(mode=0o700)
        assert configuration.keep_programs(folder, tmp_path / "kept")
    Cache(run / "cache" / PROGRAMS, 1000).put("key", b"compiled")
    Cache(run / "cache" / "found", 1000).put("key", b"found out")
    assert Cache(later / "cache" / PROGRAMS, 1000).get("key") == b"compiled"
    assert Cache(later / "cache" / "found", 1000).get("key") is None


def test_programs_are_not_kept_where_others_can_write(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept").chmod(0o777)
    assert not configuration.keep_programs(tmp_path, tmp_path / "kept")
    assert not (tmp_path / "cache").exists()


TELLING = """
import json, os, sys
print(json.dumps([dict(entry="add", dtype="float32", direction="forward")]), flush=True)
for line in sys.stdin:
    names = sorted(name for name in os.environ if name in sys.argv)
    outcomes = [f"{name}={os.environ[name]}" for name in names]
    print(json.dumps(dict(outcomes=outcomes, problems=[], seconds=0.1)), flush=True)
"""


@pytest.mark.usefixtures("user")
def test_workers_of_a_sweep_have_what_users_have_who_set_nothing(tmp_path: Path) -> None:
    sweeping = Sweeping(
        program="test",
        about=None,
        start=partial(Sweep, [sys.executable, "-c", TELLING, *SET]),
        file=tmp_path / "expected",
        load=dict,
        dump=lambda outcomes: "\n".join(outcomes.values()),
        table=lambda outcomes: "",
    )
    main(sweeping, ["--jobs", "1", "--write"])
    found = dict(pair.split("=", 1) for pair in (tmp_path / "expected").read_text().split(" & "))
    assert found.pop("OMP_NUM_THREADS") == "1"
    assert found.pop(configuration.BACKGROUND) == "off"
    assert found.pop(configuration.ATEN) == "always"
    assert found.keys() == {configuration.CACHE, configuration.CALIBRATION}
    assert "/the/users" not in found.values()
