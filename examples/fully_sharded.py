"""A model whose parameters and optimizer states several processes divide (FSDP2).

torchrun --standalone --nproc-per-node 2 -m examples.fully_sharded [BACKEND]
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    """Two layers beside a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` and what the layers add to it."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Network(nn.Module):
    """Blocks behind each other."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the last block gives."""
        for block in self.blocks:
            x = block(x)
        return x


def main() -> None:
    """Divide each block, compile the model, and train it."""
    backend = sys.argv[1] if len(sys.argv) > 1 else "pjrt"
    dist.init_process_group("gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (count,))
    torch.manual_seed(0)
    model = Network(32, layers=2)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.compile(backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for step in range(8):
        x = torch.randn(16, 32, generator=generator)
        loss = nn.functional.mse_loss(model(x), x.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average = loss.detach() / count
        dist.all_reduce(average)
        if rank == 0:
            print(f"step {step}: loss {average.item():.4f}")
    weight = model.blocks[0].up.weight
    if rank == 0:
        print(f"{tuple(weight.to_local().shape)} of {tuple(weight.shape)} is held here")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
