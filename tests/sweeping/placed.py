"""What became of the graphs of compiled functions, in short."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch._dynamo.exc import BackendCompilerFailed

from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.torch_interop.ledger import LEDGER, compiled_graphs

_ARGUMENT = re.compile(r"(arg|primals|tangents)\w*_\d+")


@dataclass(frozen=True)
class Placed:
    """Where one graph runs.

    Attributes:
        device: parts of it that run on the device.
        host: sorted names of the operators that PyTorch runs, or the reason where it is none.
        inner: it is a segment of another graph, compiled for sizes that a call brought.
    """

    device: int
    host: tuple[str, ...]
    inner: bool


def take() -> list[Placed]:
    """The graphs that were compiled since the last call, oldest first; they are forgotten.

    The only place here that knows how the backend reports.
    """
    found = [
        Placed(
            graph.on_device,
            tuple(sorted({_name(reason) for reason in graph.fallback_reasons})),
            graph.within is not None,
        )
        for graph in compiled_graphs()
    ]
    LEDGER.forget()
    return found


def _name(reason: FallbackReason) -> str:
    """The operator in the way, else the kind of reason."""
    if reason.kind == "small":
        return "views"
    if _ARGUMENT.fullmatch(reason.operator):
        return "an-argument"
    return reason.operator.replace(" ", "-") or reason.kind


def placement(placed: list[Placed]) -> str:
    """Where the graphs of one compilation run, in one word and the operators that PyTorch runs."""
    operators = ",".join(sorted({name for graph in placed for name in graph.host}))
    if not placed:
        return "no-graph"
    # A graph that only gives views of its arguments has nothing to run anywhere.
    if not operators and all(graph.device <= 1 for graph in placed):
        return "device"
    where = "mixed" if any(graph.device for graph in placed) else "host"
    return f"{where} {operators}"


def name_of(error: BaseException) -> str:
    """The type of an exception that torch.compile raised, or of the backend's own inside it."""
    while isinstance(error, BackendCompilerFailed):
        error = error.inner_exception
    return type(error).__name__


def line_of(error: BaseException) -> str:
    """What an exception says, in one line of bounded length."""
    return " ".join(str(error).split())[:400]
