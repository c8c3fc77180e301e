"""pjrt_bridge without the distribution pjrt-bridge-torch, where torch itself is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.building import ROOT

# An editable installation finds the modules in the checkout.
START = """
import sys

sys.meta_path[:] = [one for one in sys.meta_path if "__editable__" not in str(one)]
"""
COMMAND = """
from pjrt_bridge.cli.main import main

main()
"""


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """A folder with the modules of the distribution pjrt-bridge."""
    package = tmp_path / "pjrt_bridge"
    package.mkdir()
    for path in (ROOT / "pjrt_bridge").iterdir():
        if path.name not in ("torch_interop", "__pycache__"):
            (package / path.name).symlink_to(path)
    return tmp_path


def run(core: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START + source, *arguments],
        cwd=core,
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(core), *filter(None, sys.path)]),
            # The entry point that torch would call is that distribution's.
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        },
    )


@pytest.mark.parametrize("command", ["explain plain.py:f -i f32[4]", "calibrate", "bench x.py:f"])
def test_commands_name_the_distribution(core: Path, command: str) -> None:
    (core / "plain.py").write_text("def f(x):\n    return x\n")
    done = run(core, COMMAND, *command.split())
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {command.split()[0]} needs the distribution pjrt-bridge-torch, which is not "
        "installed: pip install torch==2.13.0, then pip install 'pjrt-bridge[torch]'\n"
    )


KERNELS = """
import torch
import pjrt_bridge
from pjrt_bridge.registry.targets import kernels_of

print(type(kernels_of(pjrt_bridge.client("cpu"))).__name__)
"""


def test_models_run_beside_torch(core: Path) -> None:
    """The kernels of the CPU plugin's package that are PyTorch's need that distribution."""
    done = run(core, KERNELS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "XlaKernels\n", "")


OPERATORS = """
from pjrt_bridge import jax_interop

try:
    jax_interop.torch_op
except ImportError as error:
    print(error)
"""


def test_operators_of_torch_name_the_distribution(core: Path) -> None:
    done = run(core, OPERATORS)
    assert done.stdout == (
        "pjrt_bridge.jax_interop.torch_op needs the distribution pjrt-bridge-torch: "
        "pip install torch==2.13.0, then pip install 'pjrt-bridge[torch]'\n"
    ), done.stderr
