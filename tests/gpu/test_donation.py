"""Donation on a GPU: the memory of an argument becomes that of a result."""

from __future__ import annotations

import numpy as np
import pytest

from pjrt_bridge.errors import BufferUnavailable
from pjrt_bridge.runtime import BufferState, Client
from tests import programs

ONES = np.ones(64, np.float32)


@pytest.mark.parametrize("source", [programs.ALIASED_ADD, programs.DONOR_ADD])
def test_the_memory_is_reused(gpu: Client, source: str) -> None:
    with gpu.compile(source) as add, gpu.put(ONES) as one:
        state = gpu.put(ONES)
        address = state.address
        for _ in range(48):
            (result,) = add.execute([state, one])
            assert state.state is BufferState.DONATED
            assert result.address == address
            with pytest.raises(BufferUnavailable, match="was donated to executable 'add'"):
                state.to_numpy()
            state = result
        assert (state.to_numpy() == 49).all()


def test_what_is_looked_at_keeps_its_values(gpu: Client) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a build of torch with CUDA")
    with gpu.compile(programs.DONOR_ADD) as add, gpu.put(ONES) as one:
        state = gpu.put(ONES)
        seen = torch.from_dlpack(state)
        (result,) = add.execute([state, one])
        assert state.state is BufferState.LIVE
        assert result.address != state.address
        assert (result.to_numpy() == 2).all()
        assert (seen == 1).all()


def test_memory_does_not_grow(gpu: Client) -> None:
    size = 1 << 24
    source = programs.elementwise(f"tensor<{size}xf32>", attributes="{jax.buffer_donor = true}")
    device = gpu.devices[0]
    with gpu.compile(source) as add, gpu.put(np.ones(size, np.float32)) as one:
        state = gpu.put(np.zeros(size, np.float32))
        (state,) = add.execute([state, one])
        state.block_until_ready()
        before = device.memory_stats()["bytes_in_use"]
        for _ in range(100):
            (state,) = add.execute([state, one])
        state.block_until_ready()
        assert device.memory_stats()["bytes_in_use"] <= before
        assert (state.to_numpy() == 101).all()
