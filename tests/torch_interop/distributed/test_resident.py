"""Tensors of the device among processes: collective operations, reducers, distributed tensors."""

from pathlib import Path

import pytest

from tests.torch_interop.distributed.running import outputs_of

SCRIPT = "tests.torch_interop.distributed.resident_script"


@pytest.mark.parametrize(
    "name",
    [
        "collectives",
        pytest.param("messages", marks=pytest.mark.slow),
        pytest.param("pipeline", marks=pytest.mark.slow),
        pytest.param("distributed_tensors", marks=pytest.mark.slow),
        pytest.param("data_parallel", marks=pytest.mark.slow),
        pytest.param("data_parallel_compiled", marks=pytest.mark.slow),
        pytest.param("unused_parameters", marks=pytest.mark.slow),
        pytest.param("synchronized_norms", marks=pytest.mark.slow),
        pytest.param("fully_sharded", marks=pytest.mark.slow),
        pytest.param("fully_sharded_compiled", marks=pytest.mark.slow),
        pytest.param("flat_parameters", marks=pytest.mark.slow),
    ],
)
def test_two_processes(name: str, tmp_path: Path) -> None:
    arguments = [[name, str(rank), "2", str(tmp_path / "meeting")] for rank in range(2)]
    for output in outputs_of(SCRIPT, arguments, timeout=240):
        assert "same" in output.splitlines()
