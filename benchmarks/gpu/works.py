"""What is measured on a GPU, and by whom. Nothing here imports a framework."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SIDES: Mapping[str, str] = {
    "runtime": "`executable.execute` on the plugin's buffers",
    "pjrt": '`torch.compile(backend="pjrt")` with model and inputs on `torch.device("pjrt")`',
    "pjrt on cuda": '`torch.compile(backend="pjrt")` with model and inputs on `cuda`',
    "jax": "`jax.jit` of the same module (`jax_interop.from_torch`) on the same plugin",
    "eager": "PyTorch on `cuda`, without torch.compile",
    "inductor": "`torch.compile` on `cuda`",
    "inductor graphs": '`torch.compile(mode="reduce-overhead")` on `cuda`: CUDA graphs',
    "inductor tuned": '`torch.compile(mode="max-autotune-no-cudagraphs")` on `cuda`',
}
"""Who takes part, and how."""

OURS = ("runtime", "pjrt", "pjrt on cuda")

LANES: Sequence[Sequence[str]] = (
    (*OURS, "jax"),
    ("eager", "inductor", "inductor graphs", "inductor tuned"),
)
"""Who is made ready one after the other: XLA times kernels while it compiles, and the lanes run at
the same time."""

_MODEL = ("pjrt", "pjrt on cuda", "jax", "eager", "inductor")
_SMALL = {"add": (64, 0), "resnet50": (8, 64)}


@dataclass(frozen=True)
class Work:
    """One thing that all sides do.

    Attributes:
        model: "add", "gpt2", "bert", "resnet50" or "llama".
        task: "dispatch", "inference", "training" or "decoding".
        form: "f32" (products as exact as float32 allows), "f32 high" (products of TF32), "bf16", or
            "autocast" (float32 under autocast to bfloat16).
        batch: how many texts or images a call has; of "add" how many numbers.
        length: tokens of a text, or pixels of an image's side.
        sides: who takes part.
        start: the first call of a new process and its memory are measured, not later calls.
        small: a few layers of a few channels, for a machine without a GPU.
    """

    model: str
    task: str
    form: str
    batch: int
    length: int
    sides: tuple[str, ...] = _MODEL
    start: bool = False
    small: bool = False

    @property
    def name(self) -> str:
        """Tells it from all others."""
        sizes = f"{self.batch}x{self.length}" if self.length else str(self.batch)
        return f"{self.model} {'start of ' * self.start}{self.task} {sizes}, {self.form}"

    @property
    def key(self) -> str:
        """What the results in full precision depend on."""
        return f"{self.model}-{self.task}-{self.batch}x{self.length}{'-small' * self.small}"

    def shrunk(self) -> Work:
        """The same with few and small layers and inputs."""
        batch, length = _SMALL.get(self.model, (2, 16))
        return dataclasses.replace(self, batch=batch, length=length, small=True)


def _forms(model: str, batch: int, length: int) -> list[Work]:
    return [Work(model, "inference", form, batch, length) for form in ("f32", "f32 high", "bf16")]


_DECODERS = (*_MODEL, "inductor graphs")

WORKS: Sequence[Work] = (
    Work("add", "dispatch", "f32", 64, 0, ("runtime", *_DECODERS)),
    *_forms("gpt2", 8, 512),
    *_forms("bert", 32, 128),
    *_forms("resnet50", 64, 224),
    *(
        Work("llama", "decoding", form, batch, 512, _DECODERS)
        for form in ("bf16", "f32")
        for batch in (1, 8)
    ),
    *_forms("llama", 4, 512),
    *(
        Work(model, "training", form, batch, length)
        for model, batch, length in (("gpt2", 8, 512), ("resnet50", 64, 224))
        for form in ("f32 high", "autocast")
    ),
    Work("gpt2", "inference", "bf16", 8, 512, ("pjrt", "jax", "inductor", "eager"), start=True),
    Work("gpt2", "training", "f32 high", 8, 512, ("pjrt", "jax", "inductor", "eager"), start=True),
)
"""In the order in which they are measured: what matters most comes first."""
