"""Training in several processes on torch.distributed, compiled and in eager."""

from pathlib import Path

import pytest

from tests.torch_interop.distributed.running import outputs_of

SCRIPT = "tests.torch_interop.distributed.scenarios"
FEATURES = "tests.torch_interop.distributed.features"


def graphs_of(name: str, world: int, folder: Path, script: str = SCRIPT) -> list[str]:
    """Placements of the segments of each graph that the first process compiled."""
    meeting = str(folder / "meeting")
    arguments = [[name, str(rank), str(world), meeting] for rank in range(world)]
    outputs = outputs_of(script, arguments, timeout=240)
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


def test_gradients_that_are_distributed_tensors(tmp_path: Path) -> None:
    assert graphs_of("placements", 2, tmp_path, FEATURES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "half_precision_hook",
        "accumulated",
        "uneven_inputs",
        "mixed_precision",
        "compiled_optimizer",
        "divided_losses",
        "schedules",
        "collectives",
    ],
)
def test_features(name: str, tmp_path: Path) -> None:
    assert graphs_of(name, 2, tmp_path, FEATURES)
