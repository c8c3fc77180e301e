"""Fresh environments, into which the wheels are installed with what they need from the index.

Two minutes and more for each, as PyTorch is unpacked: a part of `make test-full`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.building import PROJECTS, ROOT, build, sources

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkout = sources(tmp_path_factory.mktemp("checkout"))
    target = tmp_path_factory.mktemp("dist")
    for project in PROJECTS.values():
        build(checkout / project.relative_to(ROOT), target, "--wheel")
    return target


def run(command: list[str], folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PJRT_BRIDGE_CACHE"] = str(folder / "cache")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def environment(python: str, folder: Path, archives: Path, *requirements: str) -> str:
    """Make an environment and install; the path of its Python."""
    run([python, "-m", "venv", "environment"], folder)
    made = str(folder / "environment" / "bin" / "python")
    pip = [made, "-m", "pip", "install", "--quiet", "--find-links", str(archives)]
    for requirement in requirements:
        run([*pip, requirement], folder)
    return made


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_without_torch(version: str, archives: Path, tmp_path: Path) -> None:
    python = _python(version)
    made = environment(python, tmp_path, archives, "pjrt-bridge[cpu,reference]")
    program = next(code for code in PROGRAMS if "stablehlo.multiply" in code)
    assert "[0. 1. 4. 9.]" in run([made, "-W", "error", "-c", program], tmp_path)
    shown = run([made, "-m", "pjrt_bridge", "plugins"], tmp_path)
    assert "cpu default" in shown
    assert "dispatch: C" in shown


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_with_torch(version: str, archives: Path, tmp_path: Path) -> None:
    """Of PyTorch for some Pythons an index may have only the builds that bring CUDA: 5 GB each."""
    python = _python(version)
    made = environment(python, tmp_path, archives, "torch==2.13.0", "pjrt-bridge[cpu,torch]")
    programs = [code for code in PROGRAMS if "import torch" in code]
    assert programs
    for number, program in enumerate(programs):
        path = tmp_path / f"program_{number}.py"
        path.write_text(program)
        run([made, str(path)], tmp_path)


@pytest.mark.parametrize("jaxlib", ["0.8.0", "newest"])
def test_jaxlib(jaxlib: str, archives: Path, tmp_path: Path) -> None:
    """The oldest that pyproject.toml allows, and what the index has now."""
    wanted = "jaxlib" if jaxlib == "newest" else f"jaxlib=={jaxlib}"
    made = environment(sys.executable, tmp_path, archives, wanted, "pjrt-bridge[cpu,reference]")
    program = next(code for code in PROGRAMS if "stablehlo.multiply" in code)
    assert "[0. 1. 4. 9.]" in run([made, "-c", program], tmp_path)


def _python(version: str) -> str:
    """The path of an interpreter: on PATH, or among those that pyenv made."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    made = sorted(folder.glob(f"{version}.*/bin/python"), key=lambda path: path.stat().st_mtime)
    for command in (f"python{version}", *map(str, reversed(made))):
        if found := _executable(command, version):
            return found
    pytest.skip(f"no Python {version} on PATH and none in {folder}")


def _executable(command: str, version: str) -> str | None:
    """Path of a command's interpreter, where it starts, has that version and can make environments.

    pyenv's own commands on PATH end with an error for a version that is not chosen.
    """
    program = "import sys, venv; print(sys.executable, *sys.version_info[:2])"
    try:
        done = subprocess.run([command, "-c", program], capture_output=True, text=True)
    except OSError:
        return None
    path, _, numbers = done.stdout.strip().partition(" ")
    return path if done.returncode == 0 and numbers == version.replace(".", " ") else None
