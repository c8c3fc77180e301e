"""The examples that docs/distributed.md starts with torchrun: compiled and in eager, they agree."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(
    r"^torchrun (.*?) *(?:#.*)?$", (ROOT / "docs" / "distributed.md").read_text(), re.MULTILINE
)


def printed(command: str, backend: str) -> list[str]:
    """The lines that a run prints, without those of torchrun itself."""
    running = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *command.split(), backend],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = running.communicate(timeout=240)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    assert running.returncode == 0, errors
    return output.splitlines()


def losses(lines: list[str]) -> list[float]:
    return [float(line.rpartition(" ")[2]) for line in lines if ": loss " in line]


def test_there_is_one_for_each_way_to_divide() -> None:
    names = {command.rpartition(".")[2] for command in COMMANDS}
    assert names == {"data_parallel", "fully_sharded", "tensor_parallel"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_losses_are_those_of_eager(command: str) -> None:
    found, expected = printed(command, "pjrt"), printed(command, "eager")
    assert losses(found) == pytest.approx(losses(expected), abs=2e-3)
    assert losses(found)[-1] < 0.8 * losses(found)[0]
    assert [line for line in found if "loss" not in line] == [
        line for line in expected if "loss" not in line
    ]
