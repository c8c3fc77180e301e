"""The main job: a language model and a ResNet on a PJRT plugin, beside eager PyTorch and Inductor.

    python -m examples.demo            # GPT-2 small and ResNet-50
    python -m examples.demo --quick    # the same with models of a few thousand parameters

The models have random weights; nothing is downloaded. The language model reads the bytes of this
repository's README.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetForImageClassification

import pjrt_bridge
from pjrt_bridge.report.data import GraphReport
from pjrt_bridge.torch_interop import compiled_graphs

README = Path(__file__).parent.parent / "README.md"
DEVICE_ONLY = {"fallback": "error"}

console = Console()


@dataclass
class Workload:
    """A model and what to feed it."""

    name: str
    model: torch.nn.Module
    inputs: Mapping[str, torch.Tensor]

    def parameters(self) -> str:
        """Number of parameters, in millions."""
        return f"{sum(p.numel() for p in self.model.parameters()) / 1e6:.1f} M parameters"


def language_model(quick: bool) -> Workload:
    """GPT-2 small over the bytes of the README, cut into sequences."""
    size = dict(n_layer=1, n_embd=64, n_head=4, vocab_size=256, n_positions=64) if quick else {}
    # Without dropout, so that training can be compared with eager step by step.
    config = GPT2Config(
        **size,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    length = 32 if quick else 128
    data = README.read_bytes()[: 2 * length]
    ids = torch.tensor(list(data)).reshape(2, length)
    return Workload("GPT-2", GPT2LMHeadModel(config), {"input_ids": ids})


def vision_model(quick: bool) -> Workload:
    """ResNet-50 on random images."""
    size = dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=10)
    config = ResNetConfig(**size) if quick else ResNetConfig()
    pixels = 32 if quick else 224
    images = torch.randn(2, 3, pixels, pixels)
    return Workload("ResNet", ResNetForImageClassification(config), {"pixel_values": images})


def run_inference(work: Workload, rounds: int, with_inductor: bool) -> None:
    """Compile, compare with eager, and measure beside eager and Inductor."""
    model = work.model.eval()
    torch.compiler.reset()
    contenders: dict[str, Callable[..., Any]] = {
        "eager": model,
        "pjrt": torch.compile(model, backend="pjrt", options=DEVICE_ONLY),
    }
    if with_inductor:
        contenders["inductor"] = torch.compile(model, backend="inductor")
    first: dict[str, float] = {}
    logits: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for name, run in list(contenders.items()):
            with console.status(f"{work.name}: first call, {name}"):
                started = time.perf_counter()
                try:
                    logits[name] = run(**work.inputs).logits
                except Exception as error:
                    if name != "inductor":
                        raise
                    del contenders[name]
                    console.print(f"inductor is left out: {error}".splitlines()[0])
                first[name] = time.perf_counter() - started
        times: dict[str, list[float]] = {name: [] for name in contenders}
        with console.status(f"{work.name}: {rounds} interleaved rounds"):
            for _ in range(rounds):
                for name, run in contenders.items():
                    started = time.perf_counter()
                    run(**work.inputs)
                    times[name].append(time.perf_counter() - started)
    graphs = compiled_graphs()
    difference = (logits["pjrt"] - logits["eager"]).abs().max().item()
    console.print(
        f"graphs {len(graphs)}, segments {sum(g.on_device for g in graphs)}, "
        f"{_seconds(graphs)}, maximum difference from eager {difference:.1e}"
    )
    table = Table("", "first call [s]", "median latency [ms]", "of eager")
    eager = statistics.median(times["eager"])
    for name, values in times.items():
        median = statistics.median(values)
        table.add_row(name, f"{first[name]:.2f}", f"{median * 1e3:.2f}", f"{median / eager:.2f}x")
    console.print(table)
    assert difference < 1e-3, f"{work.name} on PJRT differs from eager by {difference}"


def next_byte_loss(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each byte given the bytes before it."""
    logits = model(input_ids=ids).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def run_training(work: Workload, steps: int) -> None:
    """Train a few steps on PJRT and in eager from the same weights, and compare the losses."""
    torch.compiler.reset()
    losses: dict[str, list[float]] = {}
    for name in ("eager", "pjrt"):
        model = copy.deepcopy(work.model).train()
        loss_of = next_byte_loss
        if name == "pjrt":
            loss_of = torch.compile(next_byte_loss, backend="pjrt", options=DEVICE_ONLY)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses[name] = []
        for step in range(steps):
            with console.status(f"{work.name}: training step {step + 1} of {steps}, {name}"):
                loss = loss_of(model, work.inputs["input_ids"])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses[name].append(loss.item())
    graphs = compiled_graphs()
    console.print(
        f"training: graphs {len(graphs)}, segments {sum(g.on_device for g in graphs)}, "
        f"{_seconds(graphs)}"
    )
    table = Table("step", "loss, eager", "loss, pjrt")
    for step, (eager, pjrt) in enumerate(zip(losses["eager"], losses["pjrt"], strict=True)):
        table.add_row(str(step + 1), f"{eager:.6f}", f"{pjrt:.6f}")
        assert abs(eager - pjrt) < 1e-3 * abs(eager), f"the loss of step {step + 1} differs"
    console.print(table)


def _seconds(graphs: tuple[GraphReport, ...]) -> str:
    lowering = sum(graph.lowering_seconds for graph in graphs)
    compiling = sum(graph.compile_seconds for graph in graphs)
    return f"lowering {lowering:.2f} s, compile {compiling:.2f} s"


def main(
    quick: Annotated[bool, typer.Option(help="Small models, few rounds.")] = False,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds of measurement.", min=1)] = 10,
    inductor: Annotated[bool, typer.Option(help="Measure Inductor too.")] = True,
) -> None:
    """Run GPT-2 and a ResNet through the default PJRT plugin, and train a few steps."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    client = pjrt_bridge.client()
    version = ".".join(map(str, client.plugin.api_version))
    console.print(
        f"[bold]plugin {client.plugin.name}[/bold], PJRT API {version}, "
        f"platform {client.platform_name}, {len(client.devices)} device(s); "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    text = language_model(quick)
    for work in (text, vision_model(quick)):
        console.rule(f"{work.name}, {work.parameters()}")
        run_inference(work, rounds, inductor)
    console.rule(f"{text.name}, three training steps")
    run_training(text, steps=3)


if __name__ == "__main__":
    typer.run(main)
