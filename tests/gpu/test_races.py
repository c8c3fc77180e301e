"""Thousands of crossings between torch's streams and the plugin's, each value checked.

Nobody waits on the host: where an order were missing, values of another call would be seen. Values
that differ are counted on the GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pjrt_bridge.runtime import Client, live_handles
from pjrt_bridge.runtime.buffers import device_view
from tests import programs

CALLS = 10_000
SIZE = 1 << 16
VECTOR = f"tensor<{SIZE}xf32>"


@pytest.fixture
def torch(gpu: Client) -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a build of torch with CUDA")
    return torch


@pytest.mark.timeout(300)
def test_torch_writes_the_plugin_reads_and_torch_reads(gpu: Client, torch: Any) -> None:
    streams = [torch.cuda.Stream() for _ in range(4)]
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    with gpu.compile(programs.elementwise(VECTOR)) as double:
        for number in range(CALLS):
            stream = streams[number % len(streams)]
            with torch.cuda.stream(stream):
                tensor = torch.full((SIZE,), float(number), device="cuda")
                tensor += 1
                with gpu.put(tensor) as buffer:
                    (made,) = double.execute([buffer, buffer])
                # Its memory is torch's again, for the next call to write to.
                del tensor
                seen = torch.from_dlpack(made)
                wrong[number % len(streams)] += (seen != 2 * (number + 1)).sum()
                del made, seen
    torch.cuda.synchronize()
    assert [int(one) for one in wrong] == [0] * len(streams)
    live_handles()
    assert device_view.lent() == 0


@pytest.mark.timeout(300)
def test_a_state_that_goes_to_and_fro(gpu: Client, torch: Any) -> None:
    stream = torch.cuda.Stream()
    with gpu.compile(programs.elementwise(VECTOR)) as add, torch.cuda.stream(stream):
        one = gpu.put(np.ones(SIZE, np.float32))
        state = torch.zeros(SIZE, device="cuda")
        for _ in range(CALLS // 4):
            with gpu.put(state) as buffer:
                (made,) = add.execute([buffer, one])
            state = torch.from_dlpack(made) + 1
            del made
        assert bool((state == 2 * (CALLS // 4)).all())


@pytest.mark.timeout(300)
def test_results_that_are_freed_while_torch_reads(gpu: Client, torch: Any) -> None:
    """Memory of the plugin is used again only after torch's work on it, and the reverse."""
    stream = torch.cuda.Stream()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    source = f"""
    func.func @main(%a: tensor<f32>) -> {VECTOR} {{
      %0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> {VECTOR}
      return %0 : {VECTOR}
    }}
    """
    with gpu.compile(source) as fill, torch.cuda.stream(stream):
        for number in range(CALLS // 4):
            (made,) = fill(np.float32(number))
            seen = torch.from_dlpack(made)
            del made
            if number % 50 == 0:
                # Long enough that the plugin would write to memory that was given back too early.
                torch.cuda._sleep(2_000_000)
            wrong += (seen != number).sum()
            del seen
    torch.cuda.synchronize()
    assert int(wrong) == 0
