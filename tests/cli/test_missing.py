"""What is missing is said in one sentence, with what to type, also without PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import programs

WITHOUT = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
from pjrt_bridge.cli import main
main.main()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text("def f(x, y):\n    return x\n")
    (tmp_path / "needs.py").write_text("import torch\n\ndef f(x):\n    return x\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "add.mlir").write_text(programs.ADD)
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    return tmp_path


def run(*arguments: str, without_torch: bool = True) -> tuple[int, str]:
    start = ["-c", WITHOUT] if without_torch else ["-m", "pjrt_bridge"]
    done = subprocess.run(
        [sys.executable, *start, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    return done.returncode, done.stderr


TORCH = "needs PyTorch, which cannot be imported (No module named 'torch'): pip install torch=="


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("explain plain.py:f -i f32[4] -i f32[4]", f"error: explain {TORCH}"),
        ("calibrate", f"error: calibrate {TORCH}"),
        (
            "explain needs.py:f -i f32[4]",
            "error: needs.py: cannot be imported: No module named 'torch'; pip install torch\n",
        ),
        (
            "explain plain.py:f",
            "error: plain.py:f(x, y): found 0 --input: missing a required argument: 'x'; give one "
            "for each argument, such as --input f32[8,64]\n",
        ),
        ("explain broken.py:f", "broken.py:1: ZeroDivisionError: division by zero\n"),
        (
            "run add.mlir -i f32[64] -i f32[64]",
            "error: --input f32[64]: found no such file, expected a .npy file; "
            "numpy.save('x.npy', array) writes one\n",
        ),
        (
            "run add.mlir -i add.mlir -i add.mlir",
            "error: --input add.mlir: found a file that begins with b'\\n    m', expected a .npy "
            "file; "
            "numpy.save('x.npy', array) writes one\n",
        ),
        (
            "run add.mlir -i objects.npy -i objects.npy",
            "error: --input objects.npy: found an array of Python objects, expected numbers; "
            "numpy.save('x.npy', array) writes one\n",
        ),
    ],
)
def test_what_is_missing(folder: Path, arguments: str, says: str) -> None:
    status, text = run(*arguments.split())
    assert status == 1
    assert says in text
    assert "internal error" not in text
    assert "allow_pickle" not in text
    assert len(text.splitlines()) == 1


def test_what_compile_wrote_is_no_program(folder: Path) -> None:
    assert run("compile", "add.mlir", "-p", "cpu", "-o", "add.exe") == (0, "")
    status, text = run("run", "add.exe")
    assert status == 1
    assert text == (
        "error: add.exe: found one compiled program, which `Client.deserialize` loads; give the "
        "model or program that it was compiled from\n"
    )


def test_a_device_that_never_ends_is_no_program(folder: Path) -> None:
    """It was read until memory was gone."""
    for arguments in (
        ("run", "/dev/zero"),
        ("compile", "/dev/zero"),
        ("compile", "add.mlir", "--topology", "x", "--target-config", "/dev/zero"),
    ):
        status, text = run(*arguments, without_torch=False)
        assert status == 1
        assert "it is neither a regular file nor a pipe" in text
        assert len(text.splitlines()) == 1


def test_what_else_could_have_been_meant(folder: Path) -> None:
    status, text = run("explain", "plain.py:g", without_torch=False)
    assert (status, text) == (1, "error: plain.py:g: plain.py has no 'g'; it has f\n")
    status, text = run("inspect", "oneapi")
    assert status == 1
    assert "Install its package (pip install 'pjrt-bridge[oneapi]'), or point" in text
