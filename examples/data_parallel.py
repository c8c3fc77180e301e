"""A model trained by several processes, each on a part of the batch (DistributedDataParallel).

torchrun --standalone --nproc-per-node 2 -m examples.data_parallel [BACKEND]
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Network(nn.Module):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of four classes."""
        found: torch.Tensor = self.layers(x)
        return found


def main() -> None:
    """Train on data that the processes divide, and average the loss over them."""
    backend = sys.argv[1] if len(sys.argv) > 1 else "pjrt"
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(128, 16)
    data = TensorDataset(inputs, inputs[:, :4].argmax(1))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    model = torch.compile(DistributedDataParallel(Network()), backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, wanted in DataLoader(data, batch_size=16, sampler=sampler):
            loss = nn.functional.cross_entropy(model(x), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total.item() / (len(data) / 16):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
