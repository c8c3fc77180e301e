"""Lightning's Trainer with a compiled module, and with a compiled network in a module."""

from __future__ import annotations

from typing import Any

import lightning
import pytest
import torch
from torch import nn

from tests.huggingface.helpers import furthest, on_host

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    # Lightning's own.
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*num_workers"),
    pytest.mark.filterwarnings("ignore:.*number of training batches"),
]


class Network(nn.Sequential):
    """A class of its own, as `compile` of torch's own containers compiles nothing."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs)


class Classifier(lightning.LightningModule):
    def __init__(self, *, logs: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = Network(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
        self.logs = logs

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.net(inputs), labels)
        if self.logs:
            self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit(whole: bool | None, precision: Any) -> Classifier:
    """Train for an epoch; the module, its network or nothing is compiled."""
    module = Classifier(logs=not whole)
    if whole is False:
        module.net.compile(backend="pjrt")
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(16, 8, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, inputs.argmax(1) % 3)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        precision=precision,
    )
    given = torch.compile(module, backend="pjrt") if whole else module
    trainer.fit(given, torch.utils.data.DataLoader(data, batch_size=4))
    return module


@pytest.mark.parametrize(
    ("whole", "precision"),
    [
        (True, "32-true"),
        *(
            pytest.param(*given, marks=pytest.mark.slow)
            for given in [(True, "bf16-mixed"), (False, "32-true"), (False, "bf16-mixed")]
        ),
    ],
)
def test_fit(whole: bool, precision: Any) -> None:
    expected = fit(None, precision)
    assert furthest(fit(whole, precision), expected) < (1e-5 if precision == "32-true" else 1e-2)
    assert not on_host()
