"""What is said where a plugin's library needs others that are not there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pjrt_bridge.errors import PluginLoadError
from pjrt_bridge.registry import load
from tests.registry.conftest import compile_library


def needing(folder: Path, *names: str) -> Path:
    """A library that needs others, which are gone."""
    for name in names:
        compile_library(folder / name, f"int {name.split('.')[0]}(void) {{ return 1; }}")
    path = folder / "needy.so"
    flags = ["-Wl,--no-as-needed", f"-L{folder}", *(f"-l:{name}" for name in names)]
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), *flags],
        input=b"int needy(void) { return 2; }",
        check=True,
    )
    for name in names:
        (folder / name).unlink()
    return path


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (
            ["libmpi.so.12", "libumf.so.0", "libunheard.so.1"],
            "it needs libmpi.so.12, libumf.so.0, libunheard.so.1, not found; "
            "pip install impi-rt 'umf==0.10.*'",
        ),
        (
            ["librccl.so.1", "libze_loader.so.1"],
            "it needs librccl.so.1, libze_loader.so.1, not found; install AMD's ROCm 7 (",
        ),
        (["libunheard.so.1"], "it needs libunheard.so.1, not found"),
        (
            [f"libno{name}.so" for name in "abcdef"],
            "it needs libnoa.so, libnob.so, libnoc.so, libnod.so and 2 more, not found",
        ),
    ],
)
def test_missing_libraries_are_named_with_what_brings_them(
    tmp_path: Path, names: list[str], text: str
) -> None:
    path = needing(tmp_path, *names)
    with pytest.raises(PluginLoadError) as raised:
        load(f"needy:{path}")
    assert raised.value.missing == tuple(names)
    assert f"plugin 'needy': {path} cannot be loaded: {text}" in str(raised.value)
