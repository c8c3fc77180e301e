"""A model on a plugin's device: trained there, saved there, loaded on the host.

python -m examples.device [PLUGIN]
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from pjrt_bridge.torch_interop import device


def network() -> nn.Module:
    """A small classifier."""
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))


def train(model: nn.Module, steps: int) -> list[float]:
    """The loss of every tenth step: batches go to the model's device, these losses come back."""
    where = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = torch.compile(model, backend="pjrt")
    features = torch.randn(256, 16)
    classes = features[:, :4].argmax(1)
    losses = []
    for at in range(steps):
        rows = torch.randint(256, (64,))
        batch, wanted = features[rows].to(where), classes[rows].to(where)
        loss = nn.functional.cross_entropy(step(batch), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if at % 10 == 0:
            losses.append(loss.item())
    return losses


def main() -> None:
    """Train, save, load."""
    torch.manual_seed(0)
    client = device.use(*sys.argv[1:2])
    model = network().to("pjrt")
    losses = train(model, 50)
    print(f"{client.plugin.name}: loss {losses[0]:.2f} at first, {losses[-1]:.2f} in the end")

    with TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder) / "model.pt")
        at_home = network()
        at_home.load_state_dict(torch.load(Path(folder) / "model.pt", map_location="cpu"))
    x = torch.randn(8, 16)
    there, here = model.eval()(x.to("pjrt")), at_home.eval()(x)
    print(f"largest difference to the host: {(there.cpu() - here).abs().max().item():.0e}")


if __name__ == "__main__":
    main()
