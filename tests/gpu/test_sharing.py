"""Tensors of torch on a GPU, used by the plugin where they lie, in the order of both streams."""

from __future__ import annotations

from typing import Any

import pytest

from pjrt_bridge.errors import DataError
from pjrt_bridge.runtime import Client, live_handles
from pjrt_bridge.runtime.buffers import device_view
from tests import programs

SIZE = 1 << 22
DOUBLE = programs.elementwise(f"tensor<{SIZE}xf32>")


@pytest.fixture
def torch(gpu: Client) -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a build of torch with CUDA")
    return torch


def test_a_tensor_is_used_where_it_lies(gpu: Client, torch: Any) -> None:
    tensor = torch.arange(SIZE, dtype=torch.float32, device="cuda")
    with gpu.put(tensor) as buffer, gpu.compile(DOUBLE) as executable:
        assert buffer.address == tensor.data_ptr()
        (made,) = executable.execute([buffer, buffer])
        seen = torch.from_dlpack(made)
        assert seen.data_ptr() == made.address
        assert torch.equal(seen, tensor + tensor)


def test_work_that_is_under_way_is_waited_for_on_the_device(gpu: Client, torch: Any) -> None:
    with gpu.compile(DOUBLE) as executable:
        for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
            with torch.cuda.stream(stream):
                for _ in range(20):
                    tensor = torch.zeros(SIZE, device="cuda")
                    # Long enough that a plugin that does not wait reads zeros.
                    torch.cuda._sleep(20_000_000)
                    tensor += 1
                    with gpu.put(tensor) as buffer:
                        (made,) = executable.execute([buffer, buffer])
                    # Nobody waited on the host so far.
                    total = torch.from_dlpack(made).sum()
                    assert float(total) == 2 * SIZE


def test_the_plugin_gives_tensors_back(gpu: Client, torch: Any) -> None:
    tensor = torch.ones(SIZE, device="cuda")
    gpu.put(tensor).block_until_ready().delete()
    live_handles()
    assert device_view.lent() == 0


def test_what_cannot_be_shared(gpu: Client, torch: Any) -> None:
    tensor = torch.ones(64, 64, device="cuda")
    for strided in (tensor.t(), tensor[:, 1:]):
        with pytest.raises(DataError, match="make it contiguous"):
            gpu.put(strided)


def test_torch_keeps_most_of_the_memory(gpu: Client, torch: Any) -> None:
    free, total = torch.cuda.mem_get_info()
    assert free > total / 2
