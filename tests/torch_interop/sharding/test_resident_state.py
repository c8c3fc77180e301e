"""Parameters and optimizer states that stay on the devices while a compiled step renews them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pjrt_bridge.runtime import ShardedBuffer
from pjrt_bridge.torch_interop.sharding import Mesh, fully_shard, sharding_of
from tests.torch_interop.sharding.models import Mlp


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_a_compiled_optimizer_reads_nothing_but_its_counters(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AdamW counts its steps on the host, in the graph that renews parameters on the devices."""
    torch.manual_seed(0)
    model, expected = Mlp(), Mlp()
    expected.load_state_dict(model.state_dict())
    fully_shard(model, mesh)
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.1) for one in (model, expected)]
    step = torch.compile(optimizers[0].step, backend="pjrt", options={"mesh": mesh})
    x = torch.randn(8, 8)

    read: list[tuple[int, ...]] = []
    to_numpy = ShardedBuffer.to_numpy

    def counted(self: ShardedBuffer) -> np.ndarray[Any, Any]:
        read.append(self.shape)
        return to_numpy(self)

    for _ in range(3):
        for net, given in ((model, x.to("pjrt")), (expected, x)):
            net.zero_grad()
            net(given).square().mean().backward()
        with monkeypatch.context() as patched:
            patched.setattr(ShardedBuffer, "to_numpy", counted)
            step()
        optimizers[1].step()
    assert set(read) <= {()}
    assert read
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-4, atol=1e-5)
        state = optimizers[0].state[one]
        assert state["step"].item() == 3
        assert sharding_of(state["exp_avg"]) == sharding_of(one.detach())
        assert sharding_of(state["exp_avg_sq"]) == sharding_of(one.detach())


def test_what_is_returned_is_read_though_it_replaces_a_value_too(mesh: Mesh) -> None:
    """A result that renews a divided tensor, and that the function gives as well."""
    x = nn.Parameter(torch.zeros(8, 8))
    fully_shard(nn.ParameterList([x]), mesh)
    counter = torch.zeros(())

    @torch.no_grad()
    def function() -> torch.Tensor:
        counter.add_(1)
        x.add_(counter)
        return x * 1

    compiled = torch.compile(function, backend="pjrt", options={"mesh": mesh})
    for count in (1, 3, 6):
        assert torch.equal(compiled().cpu(), torch.full((8, 8), float(count)))
        assert torch.equal(x.detach().cpu(), torch.full((8, 8), float(count)))
    assert counter.item() == 3


def test_equal_numbers_of_the_host_are_put_once(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two counters that are equal and one that is not, of which an update makes new ones."""
    x = nn.Parameter(torch.zeros(8, 8))
    fully_shard(nn.ParameterList([x]), mesh)
    counters = [torch.tensor(1.0), torch.tensor(1.0), torch.tensor(3.0)]

    @torch.no_grad()
    def function() -> None:
        for counter in counters:
            x.add_(counter)
            counter.add_(1)
        counters[0].add_(1)

    compiled = torch.compile(function, backend="pjrt", options={"mesh": mesh})
    compiled()
    put: list[tuple[int, ...]] = []
    put_host = ShardedBuffer.put_host

    def counted(client: Any, host: Any, sharding: Any) -> ShardedBuffer:
        put.append(host.shape)
        return put_host(client, host, sharding)

    monkeypatch.setattr(ShardedBuffer, "put_host", staticmethod(counted))
    for numbers in ([3, 2, 4], [5, 3, 5], [7, 4, 6]):
        assert [counter.item() for counter in counters] == numbers
        put.clear()
        compiled()
        assert put == [()] * len(set(numbers))
    assert torch.equal(x.detach().cpu(), torch.full((8, 8), 5.0 + 9 + 13 + 17))
