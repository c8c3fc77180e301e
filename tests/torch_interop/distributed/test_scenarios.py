"""Training in several processes on torch.distributed, compiled and in eager."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = "tests.torch_interop.distributed.scenarios"


def graphs_of(name: str, world: int, folder: Path) -> list[str]:
    """Placements of the segments of each graph that the first process compiled."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", SCRIPT, name, str(rank), str(world), str(folder / "meeting")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    # One that waits for a collective of another's would wait for ever.
    try:
        outputs = [process.communicate(timeout=240)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    for process, output in zip(running, outputs, strict=True):
        assert process.returncode == 0, output
    return next(line for line in outputs[0].splitlines() if line.startswith("graphs")).split()[1:]


def test_data_parallel(tmp_path: Path) -> None:
    """Wholly on the device: the reducer's collectives are no part of the graphs."""
    assert set(graphs_of("ddp", 2, tmp_path)) == {"D"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "ddp_without_optimizer",
        "ddp_python_reducer",
        "ddp_find_unused",
        "ddp_static_graph",
        "fsdp",
        "fsdp_blocks",
        "tensor_parallel",
        "sequence_parallel",
        "distributed_tensor",
        "pipeline",
        "checkpoint",
    ],
)
def test_two_processes(name: str, tmp_path: Path) -> None:
    assert graphs_of(name, 2, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp", "tensor_parallel", "data_and_tensor_parallel"])
def test_four_processes(name: str, tmp_path: Path) -> None:
    assert graphs_of(name, 4, tmp_path)
