"""Every architecture of the zoo (`tests.models.zoo`), wider than in tests, in four forms.

Nobody tuned anything for these models. Their names are read from the zoo's list of expected
outcomes, because the zoo itself imports frameworks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.case import Asked, Case, Suite, TorchWork

_EXPECTED = Path(__file__).parents[2] / "tests" / "models" / "expected.txt"

_SIDES = ("eager", "inductor", "inductor tuned", "pjrt", "pjrt alone")

FORMS = ("inference f32", "inference bf16", "training f32", "training autocast")
"""How each is run: the model in one element type, or in float32 under torch.autocast."""


def architectures() -> list[str]:
    """Names of the models of the zoo."""
    lines = _EXPECTED.read_text().splitlines()
    return list(dict.fromkeys(line.split()[0] for line in lines if line and line[0] != "#"))


def _work(model: str, form: str) -> TorchWork:
    import torch

    from tests.models import running
    from tests.models.zoo.scale import Scale, scaled

    class Whole(torch.nn.Module):
        """The model as far as it is measured: to its results, or to the loss."""

        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, inputs: dict[str, Any]) -> Any:
            with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in form):
                results = running.plain(self.inner(**inputs))
            return running.loss(results) if self.training else results

    with scaled(Scale(width=8, length=4, side=2, batch=4)):
        made, inputs = running.ready(model, torch.bfloat16 if "bf16" in form else torch.float32)
    training = form.startswith("training")
    return TorchWork(Whole(made).train(training), (inputs,), training=training)


def _case(model: str, form: str) -> Case:
    return Case(f"{model}, {form}", _SIDES, partial(_work, model, form))


FAMILIES: Mapping[str, Sequence[Case]] = {
    form: tuple(_case(model, form) for model in architectures()) for form in FORMS
}

_BETTER = ("eager", "inductor")

SUITES = (
    *(Suite(form, (form,), Asked("pjrt", 1.05, _BETTER)) for form in FORMS),
    Suite("all models", FORMS, Asked("pjrt", 0.95, _BETTER), slowest=1.25),
)
"""What is asked of the means of each form and of all, and of the slowest case."""
