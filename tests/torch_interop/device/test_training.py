"""Models train on the device as on the host, in eager and compiled."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from pjrt_bridge import live_handles
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.device.programs import programs
from pjrt_bridge.torch_interop.named_device import naming
from pjrt_bridge.torch_interop.resident.storages import zeros
from pjrt_bridge.torch_interop.resident.storages.transfer import COUNTS


class Net(nn.Module):
    def __init__(self, *, dropout: float = 0.0, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True)
        self.convolution = nn.Conv1d(16, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 4)
        self.checkpointed = checkpointed

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = checkpoint(self.block, x, use_reentrant=False) if self.checkpointed else self.block(x)
        x = F.relu(self.norm(self.convolution(x.transpose(1, 2))))
        return self.head(x.mean(-1))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 11, (4, 6)), torch.randint(0, 4, (4,))


def train(
    model: nn.Module,
    run: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    device: str,
) -> list[float]:
    losses = []
    for tokens, labels in batches:
        loss = F.cross_entropy(run(tokens.to(device)), labels.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, fused=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


SLOW = ("Adagrad",)
"""What has programs that the others have, too."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in OPTIMIZERS],
)
def test_eager_training(name: str) -> None:
    there = Net()
    here = copy.deepcopy(there).to("pjrt")
    batches = [batch() for _ in range(3)]
    expected = train(there, there, OPTIMIZERS[name](there.parameters()), batches, "cpu")
    found = train(here, here, OPTIMIZERS[name](here.parameters()), batches, "pjrt")
    assert found == pytest.approx(expected, rel=1e-4)
    if name.startswith("SGD"):
        # Others divide by gradients that are zero but for rounding.
        for one, other in zip(here.parameters(), there.parameters(), strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("fresh")
def test_compiled_training_moves_batches_and_losses_alone() -> None:
    there = Net()
    here = copy.deepcopy(there).to("pjrt")
    run = torch.compile(here, backend="pjrt", fullgraph=True)
    optimizers = [torch.optim.AdamW(net.parameters(), lr=0.01) for net in (there, here)]
    batches = [batch() for _ in range(5)]
    expected = train(there, there, optimizers[0], batches, "cpu")
    found = train(here, run, optimizers[1], batches[:2], "pjrt")
    before = COUNTS.to_device, COUNTS.to_host
    found += train(here, run, optimizers[1], batches[2:], "pjrt")
    moved = COUNTS.to_device - before[0], COUNTS.to_host - before[1]
    assert found == pytest.approx(expected, rel=1e-4)
    assert moved == (3 * (4 * 6 + 4) * 8, 3 * 4)
    graphs = compiled_graphs()
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    assert all(segment.placement == "device" for graph in graphs for segment in graph.segments)
    assert all(segment.bytes_copied == 0 for graph in graphs for segment in graph.segments)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_and_checkpoints(compiled: bool) -> None:
    net = Net(dropout=0.5, checkpointed=True).to("pjrt")
    run = torch.compile(net, backend="pjrt") if compiled else net
    tokens = batch()[0].to("pjrt")

    def gradients(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        found = torch.autograd.grad(run(tokens).pow(2).sum(), list(net.parameters()))
        return [one.cpu() for one in found]

    first, same, other = gradients(1), gradients(1), gradients(2)
    assert all(map(torch.equal, first, same))
    assert not all(map(torch.equal, first, other))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    here = nn.Linear(8, 8).to("pjrt")
    x = torch.randn(2, 8).to("pjrt")
    with torch.autocast("pjrt", dtype=dtype):
        made = here(x)
        assert made.dtype == dtype
        assert made.softmax(-1).dtype == torch.float32
        assert torch.cat([made, x]).dtype == torch.float32
        loss = made.float().pow(2).mean()
    loss.backward()
    assert here.weight.grad is not None
    assert here.weight.grad.dtype == torch.float32
    expected = F.linear(x.cpu(), here.weight.cpu(), here.bias.cpu())
    torch.testing.assert_close(made.float().cpu(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("eager", ["async", "fused"])
def test_autocast_of_the_host_is_not_that_of_the_device(
    eager: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", eager)
    there = [torch.randn(size) for size in ((3, 4), (4, 5))]
    here = [one.to("pjrt") for one in there]
    calls: list[Callable[..., torch.Tensor]] = [
        torch.mm,
        lambda x, y: torch.linalg.ldl_factor(x @ x.T).LD,  # PyTorch computes it
        torch.compile(torch.mm, backend="pjrt", options={"host_ops": ["aten.mm.default"]}),
    ]
    expected = [call(*there) for call in calls]
    # The programs that are made inside serve the calls behind it.
    for enabled in (True, False):
        for call, plain in zip(calls, expected, strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                torch.testing.assert_close(call(*here).cpu(), plain)


def test_gradients_of_gradients_hooks_and_functions() -> None:
    seen = []
    there = torch.randn(3, 3, requires_grad=True)
    here = there.detach().to("pjrt").requires_grad_()
    here.register_hook(lambda gradient: seen.append(gradient.device))
    for x in (there, here):
        (first,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        first.sin().sum().backward()
    assert here.grad is not None
    torch.testing.assert_close(here.grad.cpu(), there.grad)
    assert {str(one) for one in seen} == {"pjrt:0"}

    def f(w: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return (w @ row).tanh().sum()

    rows = torch.randn(4, 3)
    per_row = torch.func.vmap(torch.func.grad(f), in_dims=(None, 0))
    torch.testing.assert_close(
        per_row(here.detach(), rows.to("pjrt")).cpu(), per_row(there.detach(), rows)
    )


def test_numbers_that_change_are_compiled_once_more() -> None:

    x = torch.ones(3, device="pjrt")
    x.mul(0.5)
    before = sum(len(family._exact) for family in programs._families)
    found = [float(x.mul(0.5 + step / 10).sum()) for step in range(20)]
    after = sum(len(family._exact) for family in programs._families)
    assert found == pytest.approx([3 * (0.5 + step / 10) for step in range(20)])
    assert after <= before + 2


def test_modules_that_move_keep_their_parameters() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    weight = first.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to("pjrt")
    assert first.weight is second.weight is weight
    assert weight.device.type == "pjrt"
    model(torch.randn(2, 3).to("pjrt")).sum().backward()
    before = weight.detach().cpu()
    optimizer.step()
    assert not torch.equal(weight.detach().cpu(), before)
    model.to(torch.bfloat16).cpu()
    assert first.weight is second.weight is weight
    assert (weight.dtype, weight.device.type, weight.grad.device.type) == (
        torch.bfloat16,
        "cpu",
        "cpu",
    )
    # Modules that stay on the host are moved as they always were.
    host = nn.Linear(2, 2)
    data = host.weight.data_ptr()
    host.to(torch.float32)
    assert host.weight.data_ptr() == data


@pytest.mark.parametrize("way", ["async", "fused"])
def test_steps_leave_no_buffers_behind(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", way)
    gc.collect()
    others = live_handles().get("Buffer", 0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to("pjrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(3, 4).to("pjrt")

    def buffers(steps: int) -> int:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
        loss.item()
        del loss
        gc.collect()
        return live_handles()["Buffer"] - others

    before = buffers(5)
    assert buffers(60) == before
    # Two parameters with their gradients and momenta, and the batch; small zeros are kept.
    assert before == 7 + zeros._kept.cache_info().currsize


def test_shared_weights_stay_shared_where_something_refers_to_them() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    reference = weakref.ref(first.weight)
    kept = (first.weight * 2).sum()
    model = nn.Sequential(first, second).to("pjrt")
    assert first.weight is second.weight
    assert first.weight.device.type == "pjrt"
    assert len(list(model.parameters())) == 3
    assert reference() is not None
    kept.backward()


def test_what_a_hook_raises_does_not_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has lost the exception when backward is over (2.13), where a device is of Python."""

    def raises(gradient: torch.Tensor) -> None:
        raise ValueError("raised in a hook")

    told: list[str] = []

    def tell(message: str, *, exc_info: BaseException) -> None:
        told.append(f"{message}: {exc_info!r}")

    monkeypatch.setattr(logging.getLogger(naming.__name__), "error", tell)
    x = torch.ones(3, device="pjrt", requires_grad=True)
    hooked = x * 2
    hooked.register_hook(raises)
    with pytest.raises(SystemError):
        hooked.sum().backward()
    assert told == ["a hook of backward raised: ValueError('raised in a hook')"]
    copied = x * 1
    recomputed = checkpoint(torch.sin, copied, use_reentrant=False)
    copied.detach().add_(1)
    with pytest.raises(SystemError):
        recomputed.sum().backward()
    assert "modified by an inplace operation" in told[-1]
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0, 3.0]


def test_a_recurrent_cell_that_is_compiled_first() -> None:
    """Its operator has no kernel on the host, which says nothing of what it takes."""
    cell = nn.GRUCell(3, 5)
    there = copy.deepcopy(cell).to("pjrt")
    run = torch.compile(there, backend="pjrt")
    for batch in (2, 4, 7):
        x = torch.randn(batch, 3)
        torch.testing.assert_close(run(x.to("pjrt")).cpu(), cell(x))
