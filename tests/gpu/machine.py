"""What a machine has of all that these tests need, and what is added to it without a network."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = (".", "plugins/cpu", "plugins/reference", "plugins/cuda", "plugins/tpu", "conformance")
"""Folders of the distributions of this project, which children find modules in."""

NEEDED = {
    "hypothesis": "hypothesis",
    "jaxlib": "jaxlib",
    "ml_dtypes": "ml-dtypes",
    "numpy": "numpy",
    "platformdirs": "platformdirs",
    "pluggy": "pluggy",
    "pytest": "pytest",
    "rich": "rich",
    "typer": "typer",
}
"""Modules that nothing works without, and their distributions."""

WANTED = {"diffusers": "diffusers", "expecttest": "expecttest"}
"""Modules that the sweeps over operators and models import, and their distributions."""

TOLD = (
    "jax",
    "jax-cuda12-pjrt",
    "jax-cuda13-pjrt",
    "torch",
    "torchvision",
    "transformers",
    "triton",
    "xla-cpu-pjrt",
    "tensorflow",
    "pytest-timeout",
    "pytest-xdist",
)
"""Further distributions whose versions are told."""

NATIVE = (".", "plugins/cpu")
"""Folders whose distributions have compiled modules."""

_QUERY = "name,driver_version,memory.total,memory.used,compute_cap,clocks.max.sm,power.limit"

_TORCH = """
import json, torch
there = torch.cuda.is_available()
print(json.dumps({
    "cuda": torch.version.cuda,
    "available": there,
    "devices": [torch.cuda.get_device_name(one) for one in range(torch.cuda.device_count())],
    "capability": list(torch.cuda.get_device_capability()) if there else None,
}))
"""

_PLUGINS = """
import json
from pjrt_bridge import registry
print(json.dumps({one.name: one.no_device or one.reason or "usable" for one in registry.plugins()}))
"""

_INSTALLED = """
import json
from importlib import metadata
print(json.dumps([one.metadata["Name"] for one in metadata.distributions()]))
"""

_DISPATCHER = """
import json
from pjrt_bridge.runtime import native
print(json.dumps(native.module is not None))
"""

_MISSING = """
import json
from tests.gpu.machine import missing
print(json.dumps(missing()))
"""

_ROUTES = Path("/proc/net/route")
"""The kernel's table of routes (proc_net(5)): interface, destination, gateway and more."""


def environment(site: Path) -> dict[str, str]:
    """The environment of children: they find this project, and what was added."""
    folders = [*(str((ROOT / folder).resolve()) for folder in PACKAGES), str(site)]
    own = [*folders, *filter(None, [os.environ.get("PYTHONPATH")])]
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    return {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(own), "PYTHONUNBUFFERED": "1"}


def missing() -> list[str]:
    """Distributions that this Python lacks of those that are needed or wanted."""
    modules = {**NEEDED, **WANTED}
    return [name for module, name in modules.items() if importlib.util.find_spec(module) is None]


def wheels_for(names: Iterable[str], folder: Path) -> list[Path]:
    """Wheels in a folder that are of some distributions."""
    wanted = {re.sub(r"[-_.]+", "_", name).lower() for name in names}
    return [one for one in sorted(folder.glob("*.whl")) if one.name.split("-")[0].lower() in wanted]


def add(wheels: Sequence[Path], site: Path) -> None:
    """Install wheels into a folder, without a network.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    options = ("--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade")
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", str(site)]
    subprocess.run([*command, *map(str, wheels)], check=True)


def build(children: Mapping[str, str]) -> dict[str, str]:
    """Make what a checkout lacks: names of its distributions, and compiled modules; what was made.

    Without the former, the packages' hooks are not found; without the latter, the same is done in
    Python.
    """
    made = {}
    installed = _asked(_INSTALLED, children)
    for folder in PACKAGES:
        place = ROOT / folder
        named = tomllib.loads((place / "pyproject.toml").read_text())["project"]["name"]
        if named not in installed:
            made[f"{folder} egg-info"] = _setup(place, children, "-q", "egg_info")
    # A module of other sources than those that are here is not loaded.
    stale = _asked(_DISPATCHER, children) is not True
    for folder in NATIVE:
        place = ROOT / folder
        if stale or not list(place.rglob("*.abi3.so")):
            made[f"{folder} modules"] = _setup(
                place, children, "-q", "build_ext", "--force", "--inplace"
            )
    return made


def _setup(place: Path, children: Mapping[str, str], *arguments: str) -> str:
    command = [sys.executable, "-c", "from setuptools import setup; setup()", *arguments]
    done = subprocess.run(
        command, cwd=place, env=dict(children), capture_output=True, text=True, timeout=300
    )
    return "made" if done.returncode == 0 else done.stderr[-500:]


def facts(children: Mapping[str, str]) -> dict[str, Any]:
    """What the machine has."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "memory_gb": _memory(),
        "gpus": _gpus(),
        "cuda_toolkit": _said("nvcc", "--version"),
        "compiler": _said("gcc", "--version"),
        "commit": _said("git", "-C", str(ROOT), "rev-parse", "HEAD"),
        "versions": _versions((*NEEDED.values(), *TOLD)),
        "missing": _asked(_MISSING, children),
        "torch": _asked(_TORCH, children),
        "plugins": _asked(_PLUGINS, children),
        "dispatcher": _asked(_DISPATCHER, children),
        "network": _has_way_out(),
    }


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1)
    except (OSError, ValueError):
        return None


def _gpus() -> list[dict[str, str]]:
    said = _said("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader", lines=64)
    names = _QUERY.split(",")
    rows = [line.split(", ") for line in (said or "").splitlines()]
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def _versions(names: Iterable[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _said(program: str, *arguments: str, lines: int = 1) -> str | None:
    """The last lines that a program wrote; None where it is not there or failed."""
    if shutil.which(program) is None:
        return None
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    if done.returncode:
        return None
    return "\n".join(done.stdout.strip().splitlines()[-lines:])


def _has_way_out() -> bool:
    """Whether the machine has a default route."""
    if not _ROUTES.exists():
        return False
    rows = [line.split() for line in _ROUTES.read_text().splitlines()[1:]]
    return any(row[1] == "00000000" for row in rows)


def _asked(source: str, children: Mapping[str, str], limit: float = 120) -> Any:
    """What a program of Python printed as JSON; its last words where it failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", source],
            env=dict(children),
            capture_output=True,
            text=True,
            timeout=limit,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return f"no answer within {limit:g} s"
    except (IndexError, ValueError):
        return f"status {done.returncode}: {done.stderr[-500:]}"
