"""Collectives of two processes stay in PyTorch, in program order, between work on the device."""

import subprocess
import sys
from pathlib import Path

SCRIPT = "tests.torch_interop.mixed.collectives_script"
ROOT = Path(__file__).parents[3]


def test_two_processes(tmp_path: Path) -> None:
    commands = [
        [sys.executable, "-m", SCRIPT, str(rank), str(tmp_path / "meeting")] for rank in range(2)
    ]
    running = [
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in commands
    ]
    # One that waits for a collective of the other's would wait for ever.
    try:
        outputs = [process.communicate(timeout=120)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    for process, output in zip(running, outputs, strict=True):
        assert process.returncode == 0, output
        found = [line.split()[1:] for line in output.splitlines() if line.startswith("segments ")]
        assert [name for name, _ in found] == ["collectives", "data_parallel", "tensor_parallel"]
        assert all(int(count) >= 2 for _, count in found), found
