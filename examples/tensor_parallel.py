"""A model whose layers several processes divide (tensor and sequence parallelism by DTensor).

torchrun --standalone --nproc-per-node 2 -m examples.tensor_parallel [BACKEND]
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Block(nn.Module):
    """Attention and two layers, each beside a residual connection."""

    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` and what the layers add to it; each process has some of the heads."""
        y = self.first(x)
        query, key, value = (
            layer(y).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


# Between the layers that are divided by columns and rows, each process has a part of the sequence.
PLAN = {
    "first": SequenceParallel(),
    "second": SequenceParallel(),
    "query": ColwiseParallel(input_layouts=Shard(1)),
    "key": ColwiseParallel(input_layouts=Shard(1)),
    "value": ColwiseParallel(input_layouts=Shard(1)),
    "out": RowwiseParallel(output_layouts=Shard(1)),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}


def main() -> None:
    """Divide the block, compile it, and train it: all processes have the same batch."""
    backend = sys.argv[1] if len(sys.argv) > 1 else "pjrt"
    dist.init_process_group("gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (count,))
    torch.manual_seed(0)
    model = Block(32, head=8)
    parallelize_module(model, mesh, PLAN)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(8):
        x = torch.randn(4, 16, 32)
        part, target = (each.chunk(count, dim=1)[rank] for each in (x, x.roll(1, 1)))
        loss = nn.functional.mse_loss(compiled(part), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average = loss.detach() / count
        dist.all_reduce(average)
        if rank == 0:
            print(f"step {step}: loss {average.item():.4f}")
    weight = model.up.weight
    if rank == 0:
        print(f"{tuple(weight.to_local().shape)} of {tuple(weight.shape)} is held here")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
