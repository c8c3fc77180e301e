"""On a plugin whose memory nobody else can read, a training step moves its batch and its loss.

The reference plugin's memory is of that kind, unless it is asked for another; what it copies is
counted in it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pjrt_bridge.mixed.padded_sizes import SMALL
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.device import use
from pjrt_bridge_reference import transfer
from tests.fresh import forget_device


class Copied:
    """Bytes that the plugin copied."""

    def __init__(self) -> None:
        self.taken = 0
        self.given = 0


@pytest.fixture
def copied(device: None, monkeypatch: pytest.MonkeyPatch) -> Copied:
    forget_device()
    client = use("reference")
    assert not client.shares_host_memory
    found = Copied()
    fill, read_later = transfer._fill, transfer.read_later

    def taking(buffer, array, done, semantics):  # type: ignore[no-untyped-def]
        found.taken += array.nbytes
        return fill(buffer, array, done, semantics)

    def giving(buffer, what, work):  # type: ignore[no-untyped-def]
        found.given += buffer.nbytes
        return read_later(buffer, what, work)

    monkeypatch.setattr(transfer, "_fill", taking)
    monkeypatch.setattr(transfer, "read_later", giving)
    return found


@pytest.mark.parametrize("way", ["compiled", "fused", "async"])
def test_a_training_step_moves_its_batch_and_its_loss(
    way: str, copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way != "compiled":
        monkeypatch.setenv("PJRT_BRIDGE_EAGER", way)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to("pjrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run: Callable[[torch.Tensor], torch.Tensor] = model
    if way == "compiled":
        torch.compiler.reset()
        run = torch.compile(model, backend="pjrt")
    batch, classes = torch.randn(4, 6), torch.randint(3, (4,))
    losses = []
    for step in range(5):
        if step == 2:
            # Constants are there now.
            copied.taken = copied.given = 0
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(batch.to("pjrt")), classes.to("pjrt"))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert copied.given == 3 * 4
    assert copied.taken == 3 * (batch.nbytes + classes.nbytes)


class Texts(nn.Module):
    """The loss of a model of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 4)
        self.head = nn.Linear(4, 12)

    def forward(self, words: torch.Tensor, next: torch.Tensor) -> torch.Tensor:
        x = self.words(words).cumsum(1).softmax(-1)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), next.flatten())


def test_a_training_step_of_any_length_moves_its_batch_and_its_loss(copied: Copied) -> None:
    torch.compiler.reset()
    model = Texts().to("pjrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = torch.compile(model, backend="pjrt")
    for length in (5, 7, 9, 16, 6, 11, 12, 8, 13, 10, 15):
        optimizer.zero_grad()
        texts = torch.randint(12, (2, length + 1))
        copied.taken = copied.given = 0
        loss = run(texts[:, :-1].to("pjrt"), texts[:, 1:].to("pjrt"))
        loss.backward()
        optimizer.step()
        found = loss.item()
        assert 0 < found < 4
        assert copied.given == 4
        # Words with the padding that short texts may have, and the sizes that are new.
        assert copied.taken <= 2 * texts[:, 1:].nbytes * SMALL / length + 4 * 8
    assert len(compiled_graphs()) <= 2 * 7
    torch.compiler.reset()
