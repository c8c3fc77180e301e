"""An import path of its own: what is installed is what a test puts there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

# Imported while the real site-packages is still on the path.
import pjrt_bridge.runtime  # noqa: F401
from pjrt_bridge import registry
from pjrt_bridge.runtime.core import platforms

VARIABLES = ("PJRT_BRIDGE_PLUGIN", "PJRT_NAMES_AND_LIBRARY_PATHS")


class Site:
    """A site-packages folder that holds only what a test installs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self,
        distribution: str,
        *,
        entry_points: Mapping[str, Mapping[str, str]] | None = None,
        files: Mapping[str, str] | None = None,
        version: str = "1.0",
        record: bool = True,
    ) -> None:
        """Write a distribution's metadata and files; file contents are dedented."""
        for name, text in (files or {}).items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        if record:
            (info / "RECORD").write_text("".join(f"{name},,\n" for name in files or {}))
        lines = []
        for group, entries in (entry_points or {}).items():
            lines.append(f"[{group}]")
            lines += [f"{name} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")

    def hook(self, distribution: str, module: str, source: str, *, name: str | None = None) -> None:
        """Install a package whose one module is a hook module under the entry point `name`."""
        header = "from pjrt_bridge.registry import PluginSpec, hookimpl\n"
        self.install(
            distribution,
            entry_points={"pjrt_bridge": {name or module: module}},
            files={f"{module}.py": header + dedent(source)},
        )

    def library(self, name: str = "libchip.so") -> Path:
        """A file that only looks like a library; discovery must not open it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not a library")
        return path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    # Clients are shared by all tests, and keep what they were told of their platform.
    real = platforms.known()
    monkeypatch.setattr(platforms, "_source", lambda: {**registry.platform_specs(), **real})
    folder = tmp_path / "site"
    folder.mkdir()
    outside = [entry for entry in sys.path if "site-packages" not in entry]
    monkeypatch.setattr(sys, "path", [str(folder), *outside])
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    before = set(sys.modules)
    registry.refresh()
    yield Site(folder)
    registry.refresh()
    for name in set(sys.modules) - before:
        if str(folder) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def compile_library(path: Path, source: str) -> Path:
    """Build a shared library from C source."""
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)],
        input=source.encode(),
        check=True,
    )
    return path
