"""One way to run a case: eagerly, or compiled; how long calls take, and what they give."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pjrt_bridge.errors import OptionError
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.comparing.case import Case
from pjrt_bridge.torch_interop.explaining import report_on
from pjrt_bridge.torch_interop.ledger import compiled_graphs

EAGER = "eager"
OURS = "pjrt"


class Way:
    """A case that was made ready.

    Args:
        name: `"eager"`, or a backend of torch.compile.
        case: to run.
        options: of the backend `pjrt`.
        train: whether gradients are computed of what a call gives.
        new_tokens: how many tokens a call of `generate` makes; None to call the function itself.

    Raises:
        OptionError: tokens are wanted of what has no `generate`.
    """

    def __init__(
        self,
        name: str,
        case: Case,
        options: Mapping[str, Any],
        *,
        train: bool = False,
        new_tokens: int | None = None,
    ) -> None:
        self._name = name
        self._case = case
        self._train = train
        self._new_tokens = new_tokens
        self._puts: list[float] = []
        self._call = self._generating if new_tokens is not None else self._calling
        given = dict(options) if name == OURS else None
        if new_tokens is None:
            self._function = self._compiled(case.function, given)
            return
        model: Any = case.function
        if not hasattr(model, "generate") or not hasattr(model, "forward"):
            raise OptionError(f"found a {type(model).__name__}, expected a model with generate()")
        model.forward = self._compiled(model.forward, given)

    def _compiled(
        self, function: Callable[..., Any], options: dict[str, Any] | None
    ) -> Callable[..., Any]:
        if self._name == EAGER:
            return function
        return torch.compile(function, backend=self._name, options=options or None)

    def call(self) -> Any:
        """The results of one call; of a training step also the gradients."""
        return self._call()

    def time(self, repeats: int) -> dict[str, float]:
        """Seconds of one call, the mean of several; for `generate` also those to the first token.

        Args:
            repeats: number of calls.
        """
        first = 0.0
        started = time.perf_counter()
        for _ in range(repeats):
            begun = time.perf_counter()
            self._call()
            # The prompt comes first, then the tokens.
            first += self._puts[1] - begun if len(self._puts) > 1 else 0.0
        seconds = (time.perf_counter() - started) / repeats
        return {"seconds": seconds, "first_token": first / repeats}

    def programs(self) -> int:
        """How many programs, or graphs of other backends, were compiled so far."""
        if self._name != OURS:
            return compat.graphs_made()
        segments = [segment for graph in compiled_graphs() for segment in graph.segments]
        return sum(segment.placement == "device" for segment in segments)

    def account(self) -> dict[str, Any]:
        """Where the time of a call goes, and what can be improved."""

        def call(around: AbstractContextManager[None]) -> float:
            with around:
                return self.time(1)["seconds"]

        report = report_on(OURS, call)
        spent = {"device": 0.0, "host": 0.0}
        # A call of `generate` runs the same segments many times; one run of each is measured.
        ran = [graph for graph in report.graphs if graph.ran and graph.within is None]
        for segment in (segment for graph in ran for segment in graph.segments):
            if self._new_tokens is None:
                spent[segment.placement] += segment.run_seconds or 0.0
        return {
            "call": report.call_seconds,
            **spent,
            "bytes_copied": report.bytes_copied,
            "advice": list(report.advice),
        }

    # -- calls -------------------------------------------------------------------------------------

    def _gradients(self) -> Any:
        return nullcontext() if self._train or self._case.own_mode else torch.no_grad()

    def _calling(self) -> Any:
        with self._gradients():
            results = self._function(*self._case.args, **(self._case.kwargs or {}))
        if not self._train:
            return results
        roots = [item for item in compat.tree_leaves(results) if _has_history(item)]
        if not roots:
            raise OptionError("nothing that the function gives has gradients; leave out --train")
        torch.autograd.backward([root.sum() for root in roots])
        found = []
        if isinstance(self._case.function, torch.nn.Module):
            for parameter in self._case.function.parameters():
                found.append(parameter.grad)
                parameter.grad = None
        for item in compat.tree_leaves((self._case.args, self._case.kwargs)):
            if isinstance(item, torch.Tensor):
                item.grad = None
        return [root.detach() for root in roots] + found

    def _generating(self) -> Any:
        self._puts = []
        model: Any = self._case.function
        return model.generate(
            *self._case.args,
            **{
                "do_sample": False,
                "max_new_tokens": self._new_tokens,
                "min_new_tokens": self._new_tokens,
                "streamer": self,
                **(self._case.kwargs or {}),
            },
        )

    def put(self, tokens: torch.Tensor) -> None:
        """What `generate` gives tokens to: the prompt, then each as it comes."""
        self._puts.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is kept back."""


def _has_history(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.requires_grad
