"""Builds the project's distributions as `make wheels` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROJECTS = {
    "pjrt_bridge": ROOT,
    "pjrt_bridge_conformance": ROOT / "conformance",
    **{f"pjrt_bridge_{path.name}": path for path in sorted((ROOT / "plugins").iterdir())},
}
"""Folder of each distribution, by the name in its files' names."""


def sources(target: Path) -> Path:
    """A copy of what git knows, as an editor's or a compiler's leftovers belong in no archive."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]
    else:  # An unpacked sdist has no git folder, and nothing but sources.
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    for name in names:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    return target


def build(project: Path, target: Path, *options: str) -> None:
    """Run the build of one project."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), *options]
    done = subprocess.run([*command, str(project)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
