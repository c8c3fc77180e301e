"""One process of a program for any accelerator, started as torchrun does.

Usage: python -m tests.torch_interop.distributed.launched_script NAME RANK WORLD PORT. The programs
name devices by LOCAL_RANK. Prints that all went well.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def data_parallel() -> None:
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    dist.init_process_group(dist.get_default_backend_for_device(accelerator))
    index = dist.get_rank() % torch.accelerator.device_count()
    assert index == int(os.environ["LOCAL_RANK"])
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    expected = _trained(nn.parallel.DistributedDataParallel(network), "cpu")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(index)
    parallel = nn.parallel.DistributedDataParallel(network, device_ids=[index])
    torch.testing.assert_close(_trained(parallel, f"pjrt:{index}"), expected)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(parallel.state_dict(), f"{folder}/state.pt")
        # What the first process saved is on its device.
        state = torch.load(f"{folder}/state.pt", map_location={"pjrt:0": f"pjrt:{index}"})
        assert {value.device.index for value in state.values()} == {index}
        moved = torch.load(f"{folder}/state.pt", map_location="pjrt:0")
        assert {value.device.index for value in moved.values()} == {0}
    dist.barrier(device_ids=[index])


def _trained(network: nn.Module, device: str) -> list[Tensor]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(2):
        optimizer.zero_grad()
        network(torch.randn(4, 6, generator=generator).to(device)).square().mean().backward()
        optimizer.step()
    return [each.detach().cpu() for each in network.parameters()]


def fully_sharded() -> None:
    """Weights are made on the devices, by the operators of random numbers of DTensor."""
    from torch.distributed.fsdp import fully_shard

    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"pjrt:{rank}")
    torch.accelerator.set_device_index(rank)
    dist.init_process_group(device_id=device)
    with torch.device("meta"):
        network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    fully_shard(network)
    network.to_empty(device="pjrt")
    torch.manual_seed(0)
    for layer in (network[0], network[2]):
        layer.reset_parameters()
    weights: list[Any] = [network[0].weight, network[2].weight]
    assert weights[0].device == device == torch.ones(1, device="pjrt").device
    whole = [weight.full_tensor().cpu() for weight in weights]
    parts = [*(part for each in whole for part in each.chunk(dist.get_world_size()))]
    assert all(not torch.equal(one, other) for one in parts for other in parts if one is not other)
    for each in whole:
        found = [torch.empty_like(each) for _ in range(dist.get_world_size())]
        dist.all_gather(found, each.detach())
        assert all(torch.equal(one, each) for one in found)
    # The generators of all processes stay the same.
    drawn = torch.rand(1)
    torch.manual_seed(0)
    for layer in (network[0], network[2]):
        layer.reset_parameters()
    assert torch.equal(torch.rand(1), drawn)
    torch.testing.assert_close(weights[0].full_tensor().cpu(), whole[0])
    # Without a device's name the current one is meant.
    assert network(torch.randn(4, 8, device="pjrt")).device == device


def backward_on_the_host_first() -> None:
    """Torch has made its threads for backward passes: one for the device, whatever its name."""
    torch.ones(1, requires_grad=True).sin().backward()
    x = torch.ones(3).to("pjrt").requires_grad_()
    (x * torch.full((3,), 2.0, device="pjrt")).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]
    dist.init_process_group("gloo")
    dist.all_reduce(x.grad)
    assert x.grad.tolist() == [4, 4, 4]


def plan_of_a_library() -> None:
    """Tensor parallelism as the model's configuration says it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from pjrt_bridge.torch_interop import hf

    hf.setup()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    expected = LlamaForCausalLM(config)
    tokens = torch.arange(10).reshape(2, 5)
    with tempfile.TemporaryDirectory() as folder:
        expected.save_pretrained(folder)
        found = LlamaForCausalLM.from_pretrained(folder, tp_plan="auto")
    assert found.device == torch.device("pjrt", int(os.environ["LOCAL_RANK"]))
    torch.testing.assert_close(found(tokens.to(found.device)).logits.cpu(), expected(tokens).logits)


def main() -> None:
    name, rank, world, port = sys.argv[1:]
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PJRT_BRIDGE_PLUGIN": "cpu"}
    torch.set_num_threads(1)
    programs = (data_parallel, backward_on_the_host_first, fully_sharded, plan_of_a_library)
    {each.__name__: each for each in programs}[name]()
    print("well", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
