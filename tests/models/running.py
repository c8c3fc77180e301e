"""Runs a model through the backend and in eager PyTorch, and finds what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import Unsupported
from torch.utils import _pytree as pytree

from tests.comparing import EXACT, Tolerance, largest
from tests.models import zoo
from tests.models.case import Case
from tests.models.generation import generate
from tests.models.tolerances import SMALLEST, TOLERANCES
from tests.sweeping.comparing import Ran, differences
from tests.sweeping.placed import Placed, line_of, name_of, placement, take
from tests.sweeping.worker import Verdict

CALLS = 2
"""Of every model; between them, in training, is a step of the optimizer."""

RAN = [item.name for item in fields(Ran)]

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes something compiled of a model, or leaves it."""

RunModel = Callable[[Wrapper], list[Ran]]
"""Gives what each call of a wrapped model gave."""


@dataclass(frozen=True)
class Mode:
    """How a model is run.

    Attributes:
        training: with gradients of all parameters.
        dtype: of weights and inputs.
        autocast: bfloat16 where torch thinks that it is enough.
        device: where the model and its inputs are.
    """

    training: bool
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    device: str = "cpu"

    @property
    def tolerance(self) -> float:
        return TOLERANCES[torch.bfloat16 if self.autocast else self.dtype]

    def context(self) -> AbstractContextManager[Any]:
        """What the model is called in."""
        return torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext()


MODES = {
    "inference": Mode(False),
    "training": Mode(True),
    "inference-bf16": Mode(False, autocast=True),
    "training-bf16": Mode(True, autocast=True),
    "inference-f64": Mode(False, torch.float64),
    "training-f64": Mode(True, torch.float64),
}

EXTRA = {
    "inference-bf16": ("bert", "convnext"),
    "training-bf16": ("bert", "convnext"),
    "inference-f64": ("bert", "convnet"),
    "training-f64": ("bert", "convnet"),
    "generation": ("llama", "mistral"),
}
"""Models that are run in more ways than by default."""


ROUGH = ("mask2former", "maskformer", "mobilenet-v2")
"""Models whose gates, matchings and norms of few elements amplify rounding: they train in f64."""

GRAPHS = {"inference": 1, "training": 2, "generation": 2}
"""In how many graphs a model should run: forward and backward; prompt and every token after it."""


def all_cases() -> Iterator[Case]:
    """Every model in every mode that it is run in."""
    for model in zoo.MODELS:
        yield Case(model, "inference")
        yield Case(model, "training-f64" if model in ROUGH else "training")
        for mode, models in EXTRA.items():
            if model in models:
                yield Case(model, mode)


def run_case(case: Case) -> Verdict:
    """Compile a model in a mode and compare each of its calls with eager's."""
    started = time.process_time()
    verdict = Verdict()
    mode = MODES.get(case.mode)
    tolerance = 0.0 if mode is None else mode.tolerance

    def runner(wrap: Wrapper) -> list[Ran]:
        if mode is None:
            return [Ran(generate(case.model, wrap), [], [])]
        return list(calls(case.model, mode, wrap))

    expected = runner(lambda function: function)
    trouble = ""
    try:
        found, placed = _compiled(runner, fullgraph=True)
    except Exception as error:
        if not isinstance(error, Unsupported) and not _fails_alike(runner, error):
            verdict.problems.append(f"{name_of(error)}: {line_of(error)}")
            return verdict
        trouble = f"untraceable {name_of(error)} "
        found, placed = _compiled(runner, fullgraph=False)
    wrong = _differences(found, expected, tolerance)
    if wrong and mode is not None and mode.autocast:
        # What is rounded where a chain ends may be nearer to float32 than to eager mode.
        wrong = _differences(found, _in_float32(case.model, mode, expected), tolerance)
    flag = ""
    if wrong:
        traced = _as_others(runner, fullgraph=not trouble)
        if _differences(found, traced, tolerance):
            verdict.problems += wrong[:5]
        else:
            flag = " ~traced"
    verdict.outcomes.add(trouble + outcome(case, placed) + flag)
    verdict.seconds = time.process_time() - started
    return verdict


def _in_float32(model: str, mode: Mode, like: list[Ran]) -> list[Ran]:
    """What eager calls give without autocast, in the element types of these."""
    exact = calls(model, replace(mode, autocast=False), lambda function: function)
    return [
        Ran(*(_of_types(getattr(one, part), getattr(other, part)) for part in RAN))
        for one, other in zip(exact, like, strict=True)
    ]


def _of_types(tree: Any, like: Any) -> Any:
    return pytree.tree_map(
        lambda x, y: x.to(y.dtype) if isinstance(x, torch.Tensor) else x, tree, like
    )


def outcome(case: Case, placed: list[Placed]) -> str:
    """Where a model ran, and in how many graphs if that is not as it should be."""
    usual = GRAPHS[case.mode.partition("-")[0]]
    graphs = sum(not graph.inner for graph in placed)
    return placement(placed) + ("" if graphs == usual else f" in {graphs} graphs")


def _compiled(runner: RunModel, fullgraph: bool) -> tuple[list[Ran], list[Placed]]:
    """What calls of the compiled model gave, and what became of its graphs."""
    torch.compiler.reset()
    take()
    found = runner(partial(torch.compile, backend="pjrt", options={}, fullgraph=fullgraph))
    return found, take()


def _as_others(runner: RunModel, fullgraph: bool) -> list[Ran]:
    """What calls of the model give when torch's own backend compiled it."""
    torch.compiler.reset()
    return runner(partial(torch.compile, backend="aot_eager", fullgraph=fullgraph))


def _fails_alike(runner: RunModel, error: Exception) -> bool:
    """Whether torch's own backend ends in the same exception."""
    try:
        _as_others(runner, fullgraph=True)
    except Exception as other:
        return name_of(other) == name_of(error)
    return False


def _differences(found: list[Ran], expected: list[Ran], tolerance: float) -> list[str]:
    return [
        f"call {call}: {text}"
        for call, (ours, theirs) in enumerate(zip(found, expected, strict=True))
        for text in compare(ours, theirs, tolerance)
    ]


def calls(name: str, mode: Mode, wrap: Wrapper, number: int = CALLS) -> Iterator[Ran]:
    """What each call gave: outputs, gradients of all parameters, and buffers afterwards."""
    model, inputs = ready(name, mode.dtype)
    model.to(mode.device)
    inputs = pytree.tree_map_only(torch.Tensor, lambda x: x.to(mode.device), inputs)
    function = wrap(model.train(mode.training))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(number):
        optimizer.zero_grad()
        with torch.set_grad_enabled(mode.training), mode.context():
            results = plain(function(**inputs))
        if mode.training:
            loss(results).backward()
        gradients = {key: weight.grad for key, weight in model.named_parameters()}
        state = dict(model.named_buffers())
        yield Ran(*map(_copied, (results, gradients if mode.training else [], state)))
        if mode.training:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def ready(name: str, dtype: torch.dtype) -> zoo.Made:
    """A model and its inputs in an element type, after a call in evaluation mode.

    Some make in their first call what cannot be traced.
    """
    torch.manual_seed(0)
    model, inputs = zoo.build(name)
    assert_determined(model)
    model.to(dtype)
    inputs = pytree.tree_map_only(
        torch.Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, inputs
    )
    with torch.no_grad():
        model.eval()(**inputs)
    return model, inputs


def _copied(tree: Any) -> Any:
    """What is left when the model goes on."""
    return pytree.tree_map_only(torch.Tensor, lambda x: x.detach().clone().cpu(), tree)


def assert_determined(model: nn.Module) -> None:
    """Nothing in a model drops anything by chance."""
    chances = [m for m in model.modules() if isinstance(m, nn.Dropout) and m.p > 0]
    assert not chances, f"{type(model).__name__} leaves something to chance: {chances}"


def plain(results: Any) -> Any:
    """Results in lists and dicts only; models have classes of their own for them."""
    if isinstance(results, Mapping):
        return {key: plain(value) for key, value in results.items()}
    if isinstance(results, (list, tuple)):
        return [plain(value) for value in results]
    return results


def loss(results: Any) -> torch.Tensor:
    """The model's own loss, else a fixed random sum of all that it gives."""
    own = results.get("loss") if isinstance(results, dict) else None
    if own is not None:
        return own
    generator = torch.Generator().manual_seed(1)
    return torch.stack(
        [
            (leaf * torch.randn(leaf.shape, generator=generator).to(leaf.device)).mean()
            for leaf in pytree.tree_leaves(results)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
    ).sum()


def compare(found: Ran, expected: Ran, tolerance: float) -> list[str]:
    """Each place where two calls differ by more than the tolerance of the largest element there."""
    floor = SMALLEST * max(map(_largest, pytree.tree_leaves(expected.gradients)), default=0.0)

    def tolerances(dtype: torch.dtype) -> Tolerance:
        return Tolerance(0.0, tolerance) if dtype.is_floating_point else EXACT

    return differences(found, expected, tolerances, least_gradient=floor)


def _largest(leaf: Any) -> float:
    return largest(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else 0.0
