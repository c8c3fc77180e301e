"""A model over a mesh of two by two devices of one process: batches and layers are divided.

python -m examples.sharding [PLUGIN]
"""

import sys

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from pjrt_bridge.torch_interop import device, explain
from pjrt_bridge.torch_interop.sharding import Mesh, fully_shard, parallelize, sharding_of


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


PLAN = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}


def main() -> None:
    """Divide, train, and tell what lies where."""
    torch.manual_seed(0)
    plugin = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    device.use(plugin, cpu_device_count=4)
    mesh = Mesh(dp=2, tp=2)
    model = nn.Sequential(*[Block(32) for _ in range(2)])
    parallelize(model, mesh, PLAN)
    fully_shard(model, mesh)
    step = torch.compile(model, backend="pjrt", options={"mesh": mesh})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(64, 32)
    wanted = x.roll(1, 1).to("pjrt")
    losses = []
    for _ in range(20):
        loss = nn.functional.mse_loss(step(x.to("pjrt")), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} in the end")
    weight = model[0].up.weight
    for name, tensor in (
        ("weight", weight),
        ("gradient", weight.grad),
        ("average", optimizer.state[weight]["exp_avg"]),
    ):
        print(f"{name} of the first layer: {sharding_of(tensor)}")
    with torch.no_grad():
        (segment,) = explain(step, x.to("pjrt")).segments
    for one in segment.exchanges:
        print(f"{one.count} {one.operation}: {one.nbytes} bytes")


if __name__ == "__main__":
    main()
