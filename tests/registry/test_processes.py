"""How the processes that a client spans are named, and what a plugin is told of them."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from pjrt_bridge.errors import OptionError
from pjrt_bridge.registry import PluginSpec, Processes, client
from pjrt_bridge.registry.processes import GROUP, find, options_for
from tests.registry.conftest import Site

ROOT = Path(__file__).parent.parent.parent

LAUNCHER = """
from pjrt_bridge.registry import Processes

class Store:
    def get(self, key, timeout): raise TimeoutError
    def try_get(self, key): return None
    def put(self, key, value): pass

PROCESSES = Processes(1, 3, Store(), local_rank=1)

def slurm(): return PROCESSES
def number(): return 3
"""


@pytest.fixture(name="launcher")
def _launcher(site: Site) -> Site:
    names = ("slurm", "number", "absent")
    site.install(
        "launchers",
        entry_points={GROUP: {**{name: f"launcher:{name}" for name in names}, "gone": "nowhere:f"}},
        files={"launcher.py": LAUNCHER},
    )
    return site


def test_a_launcher_is_found_by_its_name(launcher: Site) -> None:
    found = find("slurm")
    assert (found.rank, found.count, found.local_rank) == (1, 3, 1)
    assert find("slurm") is found
    assert find(found) is found
    sys.modules.pop("launcher", None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nobody", "found 'nobody', expected one of: 'absent', 'gone', 'number', 'slurm'"),
        ("number", "processes 'number': launcher:number: found 3, expected a Processes"),
        ("absent", "processes 'absent': launcher:absent: "),
        ("gone", "processes 'gone': nowhere:f: No module named 'nowhere'"),
        (None, "processes: found None, expected a Processes or the name of one"),
    ],
)
def test_names_that_give_no_processes(launcher: Site, name: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        find(name)
    sys.modules.pop("launcher", None)


def test_torchs_name_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][GROUP] == {
        "torchrun": "pjrt_bridge.torch_interop.processes:torchrun"
    }


def test_what_a_plugin_is_told(launcher: Site) -> None:
    processes = find("slurm")
    told = {"node_id": 1, "num_nodes": 3}
    spec = PluginSpec("chip", address=4096, spans_processes=True)
    assert options_for(spec, processes) == told
    spec = PluginSpec("chip", address=4096, spans_processes=True, divides_machines=True)
    assert options_for(spec, processes) == {**told, "visible_devices": [1]}
    whole = Processes(1, 3, processes.store)
    assert options_for(spec, whole) == told
    with pytest.raises(OptionError, match="plugin 'chip' has no clients that span processes"):
        client(PluginSpec("chip", address=4096), processes=processes)
    sys.modules.pop("launcher", None)
