"""Collectives of two processes stay in PyTorch, in program order, between work on the device."""

import re
from pathlib import Path

from tests.torch_interop.distributed.running import outputs_of

SCRIPT = "tests.torch_interop.mixed.collectives_script"


def test_two_processes(tmp_path: Path) -> None:
    arguments = [[str(rank), str(tmp_path / "meeting")] for rank in range(2)]
    for output in outputs_of(SCRIPT, arguments, timeout=120):
        found = [line.split()[1:] for line in output.splitlines() if line.startswith("segments ")]
        assert [name for name, _ in found] == ["collectives", "data_parallel", "tensor_parallel"]
        assert all(int(count) >= 2 for _, count in found), found


def test_an_error_names_operations_and_processes(tmp_path: Path) -> None:
    """Of a process that the other one has left."""
    arguments = [[str(rank), str(tmp_path / "meeting")] for rank in range(2)]
    script = "tests.torch_interop.mixed.lost_process_script"
    output, _ = outputs_of(script, arguments, timeout=120)
    assert re.search(r"all_reduce\S*\(float32\[4, 3\]\): .* with ranks 0, 1 of group", output), (
        output
    )
    assert 'whole = functional.all_reduce(x.sin(), "sum"' in output, output
    assert "in the same order and with sizes that fit" in output, output
