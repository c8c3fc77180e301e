"""transformers' Trainer and accelerate: the same losses as eager, and runs that go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import TorchDynamoPlugin
from transformers import BertForSequenceClassification, Trainer, TrainingArguments

from pjrt_bridge.torch_interop import compiled_graphs, hf
from tests.huggingface.helpers import WORDS, bert, furthest, llama, on_host

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    # The libraries' own.
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory"),
    # Dynamo looks at it, in each tensor that it is given.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

STATES = ["run_and_save_rng_state", "run_with_rng_state"]
"""Operators with a state of the random generator, of checkpointed layers."""


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(2, 97, (count, 8), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": row, "labels": row.clone()} for row in tokens]


def train(folder: Path, resume: str | None = None, **arguments: Any) -> tuple[Any, list[float]]:
    """Four steps of two batches each; the model, and the losses and norms of the steps."""
    model = llama(2).train()
    settings = TrainingArguments(
        str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=4,
        learning_rate=1e-2,
        max_grad_norm=0.5,
        logging_steps=1,
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
        **arguments,
    )
    trainer = Trainer(model, settings, train_dataset=rows(16))
    trainer.train(resume_from_checkpoint=None if resume is None else str(folder / resume))
    history = trainer.state.log_history
    return model, [step[name] for step in history for name in ("loss", "grad_norm") if name in step]


KINDS = {
    "float32": {},
    "bfloat16 and checkpointing": {"bf16": True, "gradient_checkpointing": True},
}


@pytest.mark.parametrize(
    "kind", ["float32", pytest.param("bfloat16 and checkpointing", marks=pytest.mark.slow)]
)
@pytest.mark.filterwarnings("ignore:.*rng_state:pjrt_bridge.errors.HostFallbackWarning")
def test_the_trainer(kind: str, tmp_path: Path) -> None:
    hf.setup()
    given = KINDS[kind]
    expected, steps = train(tmp_path / "eager", **given)
    given = given | {"torch_compile": True, "torch_compile_backend": "pjrt"}
    model, found = train(tmp_path / "pjrt", **given)
    rounding = 2e-2 if "bf16" in given else 1e-5
    assert found == pytest.approx(steps, rel=rounding)
    assert furthest(model, expected) < (0.1 if "bf16" in given else 1e-4)
    assert not on_host(but=[f"higher_order.{name}" for name in STATES])
    again, _ = train(tmp_path / "pjrt", "checkpoint-2", **given)
    assert furthest(again, model) == 0


def accelerated(**arguments: Any) -> list[float]:
    """Losses of an epoch with accumulation and clipping."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **arguments)
    model = bert(
        BertForSequenceClassification,
        num_labels=3,
        problem_type="single_label_classification",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ).train()
    tokens = torch.randint(0, len(WORDS), (8, 8), generator=torch.Generator().manual_seed(5))
    data = [{"input_ids": row, "labels": torch.tensor(at % 3)} for at, row in enumerate(tokens)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_accelerate() -> None:
    hf.setup()
    expected = accelerated()
    assert accelerated(dynamo_backend="pjrt") == pytest.approx(expected, rel=1e-5)
    assert not on_host()
    assert [graph.kind for graph in compiled_graphs()] == ["forward", "backward"]


@pytest.mark.slow
def test_accelerate_compiles_regions_in_bfloat16() -> None:
    hf.setup()
    expected = accelerated(mixed_precision="bf16")
    plugin = TorchDynamoPlugin(
        backend="pjrt", mode="reduce-overhead", use_regional_compilation=True
    )
    found = accelerated(mixed_precision="bf16", dynamo_plugin=plugin)
    assert found == pytest.approx(expected, rel=1e-3)
    assert not on_host()
