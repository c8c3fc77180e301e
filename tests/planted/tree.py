"""A copy of the tree, into which faults are planted one after the other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.planted.fault import ROOT, Fault

_PACKAGES = ("conformance", "plugins/cpu", "plugins/cuda", "plugins/tpu", "plugins/reference")
_BUILD = "from setuptools import setup; setup()"


class Tree:
    """The files of a working tree in a folder of their own, with its compiled modules.

    Args:
        folder: is made.
        source: a working tree of Git; what Git ignores is not copied, but for compiled modules.

    Raises:
        subprocess.CalledProcessError: it is no working tree.
    """

    def __init__(self, folder: Path, source: Path = ROOT) -> None:
        self.folder = folder
        self._changed_at = int(time.time())
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=source,
            stdout=subprocess.PIPE,
            check=True,
        )
        compiled = (
            path.relative_to(source)
            for place in ("pjrt_bridge", "plugins")
            for path in (source / place).rglob("*.so")
        )
        for name in [*map(os.fsdecode, listed.stdout.split(b"\0")[:-1]), *compiled]:
            # A file that was deleted is still listed.
            if (source / name).is_file():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, target)

    def environment(self) -> dict[str, str]:
        """Variables of processes that are to import the copy."""
        paths = [self.folder, *(self.folder / package for package in _PACKAGES)]
        found = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
        # All of the product and of the tests would be compiled for each fault.
        found.pop("PYTHONDONTWRITEBYTECODE", None)
        return found

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """The copy with a fault, during a `with` block; C files are compiled for it.

        Raises:
            ValueError: the fault does not apply.
            subprocess.CalledProcessError: the changed C files cannot be compiled.
        """
        objection = fault.objection(self.folder)
        if objection:
            raise ValueError(f"fault {fault.name!r}: {objection}")
        file = self.folder / fault.path
        compiled = {
            path: path.read_bytes()
            for path in self.folder.rglob("*.so")
            if file.suffix in (".c", ".h")
        }
        text = file.read_text()
        self._write(file, fault.planted(text))
        try:
            if compiled:
                self._compile(_distribution(file))
            yield
        finally:
            self._write(file, text)
            for path, content in compiled.items():
                path.write_bytes(content)

    def _write(self, file: Path, text: str) -> None:
        """Change a file at a second of its own, by which Python knows bytecode that is stale."""
        file.write_text(text)
        self._changed_at += 1
        os.utime(file, (self._changed_at, self._changed_at))

    def _compile(self, distribution: Path) -> None:
        subprocess.run(
            [sys.executable, "-c", _BUILD, "--quiet", "build_ext", "--inplace"],
            cwd=distribution,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )


def _distribution(file: Path) -> Path:
    """The folder of the distribution that a file belongs to."""
    return next(folder for folder in file.parents if (folder / "pyproject.toml").is_file())
