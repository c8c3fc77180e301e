"""The modules of the works, in float32 on the host, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.cases import networks
from benchmarks.gpu.decoder import Sizes, decoder
from benchmarks.gpu.works import Work

CHECKED = 3
"""Steps of training, and tokens of decoding, whose results are compared."""

_SMALL = Sizes(layers=2, width=64, inner=128, heads=4, groups=2, tokens=100, length=16)


@dataclass(frozen=True)
class Made:
    """A module of a work, and what it is called with.

    Attributes:
        module: in training it gives the loss, in decoding next tokens, next position and logits,
            else one tensor.
        inputs: of it; in decoding of its first call.
        optimizer: makes the optimizer of parameters.
        autocast: sets the type of device on which the module computes under autocast.
    """

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None


class _Add(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


class _Field(nn.Module):
    """A model of transformers as far as one field of its result."""

    def __init__(self, inner: nn.Module, field: str) -> None:
        super().__init__()
        self.inner = inner
        self.field = field

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(self.inner(x), self.field)
        return found


class Loss(nn.Module):
    """The loss of a model.

    Args:
        inner: gives logits, with the classes last.
        autocast: the type of the device, if it computes under autocast to bfloat16.
        shifted: the logits at a position are about the target at the next.
    """

    def __init__(self, inner: nn.Module, *, autocast: str | None, shifted: bool) -> None:
        super().__init__()
        self.inner = inner
        self.autocast = autocast
        self.shifted = shifted

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """One number, in float32."""
        with torch.autocast(
            self.autocast or "cpu", torch.bfloat16, enabled=self.autocast is not None
        ):
            logits = self.inner(x)
        if self.shifted:
            logits, target = logits[:, :-1].flatten(0, 1), target[:, 1:].flatten()
        return nn.functional.cross_entropy(logits.float(), target)


def make(work: Work, device: str = "cpu") -> Made:
    """The module and the inputs of a work.

    Args:
        work: of which.
        device: the type of the device on which it will compute.
    """
    generator = torch.Generator().manual_seed(1)
    if work.model == "add":
        return Made(_Add(), tuple(torch.randn(2, work.batch, generator=generator)))
    if work.model == "llama":
        sizes = _SMALL if work.small else Sizes()
        tokens = torch.randint(sizes.tokens, (work.batch, work.length), generator=generator)
        if work.task == "decoding":
            module = decoder(sizes, work.batch)
            return Made(module, (tokens[:, :1].contiguous(), torch.zeros(1, dtype=torch.int64)))
        return Made(decoder(sizes), (tokens,))
    inner, (x,) = _network(work)
    module = _Field(inner, "last_hidden_state" if work.model == "bert" else "logits")
    if work.task != "training":
        return Made(module.eval(), (x,))
    images = work.model == "resnet50"
    loss = Loss(module, autocast=device if work.form == "autocast" else None, shifted=not images)
    target = torch.randint(1000, (work.batch,), generator=generator) if images else x
    # Dropout draws other numbers on each side; batch normalization is computed of the batch.
    return Made(loss.train(images), (x, target), _sgd if images else _adamw)


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def _network(work: Work) -> networks.Network:
    if work.model == "gpt2":
        sizes = {"layers": 2, "width": 64} if work.small else {}
        return networks.gpt2(batch=work.batch, tokens=work.length, **sizes)
    if work.model == "bert":
        sizes = {"layers": 2, "width": 64} if work.small else {}
        return networks.bert(batch=work.batch, tokens=work.length, **sizes)
    return networks.resnet50(batch=work.batch, side=work.length)
