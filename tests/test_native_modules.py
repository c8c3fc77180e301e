"""Compiled modules: how they are built, and that stale ones are left."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from pjrt_bridge import native_modules
from pjrt_bridge.errors import BridgeWarning
from pjrt_bridge.runtime import native
from pjrt_bridge_cpu.aten import _aten
from tests.plugins import require_dispatcher

ROOT = Path(__file__).parent.parent
DISPATCH = Path(native.__file__).parent / "dispatch"
ATEN = Path(_aten.__file__).parent / "native"
FOLDERS = {"_dispatch": DISPATCH, "_aten": ATEN}
PROJECTS = {"_dispatch": ROOT, "_aten": ROOT / "plugins" / "cpu"}
NAMES = {
    "_dispatch": "pjrt_bridge.runtime.dispatch._dispatch",
    "_aten": "pjrt_bridge_cpu.aten._aten",
}
COMPILER = shutil.which("cc")
ARM_COMPILER = shutil.which("aarch64-linux-gnu-gcc")
MAKE = shutil.which("make")

require_dispatcher()


# -- the sources -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "compiler",
    [
        pytest.param(
            COMPILER, marks=pytest.mark.skipif(COMPILER is None, reason="no C compiler"), id="host"
        ),
        pytest.param(
            ARM_COMPILER,
            marks=pytest.mark.skipif(
                ARM_COMPILER is None, reason="no compiler for AArch64 (gcc-aarch64-linux-gnu)"
            ),
            id="aarch64",
        ),
    ],
)
@pytest.mark.parametrize("module", FOLDERS)
def test_they_compile_without_a_warning(module: str, compiler: str, tmp_path: Path) -> None:
    # Python's headers of 64-bit Linux are the same for both processors.
    include = sysconfig.get_paths()["include"]
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wconversion", "-Wno-sign-conversion"]
    target = ["-shared", "-fPIC", "-std=gnu11", "-O2", "-o", str(tmp_path / "module.so")]
    sources = map(str, sorted(FOLDERS[module].glob("*.c")))
    command = [compiler, *warnings, *target, '-DREVISION=""', f"-I{include}", *sources]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_free_threaded_python_is_refused() -> None:
    include = sysconfig.get_paths()["include"]
    command = [str(COMPILER), "-fsyntax-only", "-DPy_GIL_DISABLED", f"-I{include}"]
    done = subprocess.run([*command, DISPATCH / "process.c"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "guarded by the GIL" in done.stderr


@pytest.mark.parametrize("module", PROJECTS)
def test_a_distribution_is_built_of_all_sources_in_its_folder(module: str) -> None:
    project, folder = PROJECTS[module], FOLDERS[module]
    (found,) = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["setuptools"][
        "ext-modules"
    ]
    assert found["name"] == NAMES[module]
    for key, pattern in (("sources", "*.c"), ("depends", "*.h")):
        assert found[key] == sorted(str(path.relative_to(project)) for path in folder.glob(pattern))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (DISPATCH / "wait.h", ATEN / "wait.h"),
        (ROOT / "build_native.py", ROOT / "plugins" / "cpu" / "build_native.py"),
    ],
    ids=lambda path: path.name,
)
def test_what_both_distributions_have_is_the_same(one: Path, other: Path) -> None:
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.skipif(MAKE is None, reason="no make")
def test_every_source_has_make_build_again() -> None:
    command = [str(MAKE), "--dry-run", "--print-data-base", "lint"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    (rule,) = re.findall(r"^\.venv/\.ready: (.*)$", done.stdout, re.MULTILINE)
    files = {path for folder in FOLDERS.values() for path in folder.glob("*.[ch]")}
    assert {str(path.relative_to(ROOT)) for path in files} < set(rule.split())


# -- loading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", FOLDERS)
def test_a_module_that_was_built_from_these_sources(module: str) -> None:
    loaded = native_modules.load(NAMES[module], FOLDERS[module])
    assert native_modules.revision(FOLDERS[module]) == loaded.REVISION


@pytest.mark.parametrize("module", FOLDERS)
@pytest.mark.parametrize("changed", ["content", "name", "one more", "one less"])
def test_a_module_that_was_built_from_other_sources(
    module: str, changed: str, tmp_path: Path
) -> None:
    folder = tmp_path / "sources"
    shutil.copytree(FOLDERS[module], folder)
    path = folder / "wait.h"
    match changed:
        case "content":
            path.write_text(path.read_text() + "\n")
        case "name":
            path.rename(folder / "waiting.h")
        case "one more":
            (folder / "empty.c").touch()
        case "one less":
            path.unlink()
    message = rf"{module}.*built from other sources .*{re.escape(str(folder))}.*pip install -e"
    with (
        pytest.warns(BridgeWarning, match=message),
        pytest.raises(ImportError, match=message),
    ):
        native_modules.load(NAMES[module], folder)


def test_in_a_wheel_there_are_no_sources_to_compare(tmp_path: Path) -> None:
    assert native_modules.revision(tmp_path) is None
    assert native_modules.load(NAMES["_dispatch"], tmp_path) is native.module


def test_a_module_from_before_there_were_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(native.module, "REVISION")
    with pytest.warns(BridgeWarning, match="built from other sources"):
        assert native._load() is None


def test_a_module_that_was_not_built() -> None:
    with pytest.raises(ImportError, match="_nowhere"):
        native_modules.load("pjrt_bridge._nowhere", DISPATCH)


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_what_is_built_fits_its_sources(tmp_path: Path) -> None:
    """Also where an object file that is newer than the sources was made of others."""
    project, folder = PROJECTS["_aten"], tmp_path / ATEN.relative_to(PROJECTS["_aten"])
    for name in ("pyproject.toml", "README.md", "build_native.py"):
        shutil.copy(project / name, tmp_path)
    shutil.copytree(ATEN, folder)
    # The revision is compiled into this source; to compile the others takes a minute.
    declared = tmp_path / "pyproject.toml"
    text = declared.read_text()
    kept = str((folder / "module.c").relative_to(tmp_path))
    declared.write_text(re.sub(r"(?m)^sources = \[[^]]*\]", f'sources = ["{kept}"]', text))
    setup = [sys.executable, "-c", "from setuptools import setup; setup()"]
    environment = {**os.environ, "CFLAGS": "-O0"}
    revisions = []
    for text in ("", "/* changed */\n"):
        header = folder / "wait.h"
        header.write_text(header.read_text() + text)
        os.utime(header, (0, 0))
        command = [*setup, "build_ext", "--inplace"]
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
        revisions.append(native_modules.revision(folder))
        built = folder.parent / Path(_aten.__file__).name
        assert revisions[-1].encode() in built.read_bytes()
    assert revisions[0] != revisions[1]
