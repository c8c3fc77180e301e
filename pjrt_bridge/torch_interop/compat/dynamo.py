"""What Dynamo knows of the code that it compiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from torch._dynamo.utils import counters, get_compilation_metrics
from torch._guards import CompileContext


def original(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """What torch.compile was given to make a function; None where it did not make it."""
    return getattr(function, "_torchdynamo_orig_callable", None) or getattr(
        function, "_orig_mod", None
    )


def compile_id() -> tuple[int, int] | None:
    """While a graph is compiled: the number of its code, and how often that was compiled before."""
    found = CompileContext.current_compile_id()
    if found is None or found.frame_id is None:
        return None
    return found.frame_id, found.frame_compile_id or 0


def recompile_reasons() -> dict[tuple[int, int], str]:
    """Why torch compiled code again, by `compile_id` (of the last compilations)."""
    reasons = {}
    for metrics in get_compilation_metrics():
        identity, _, again = str(metrics.compile_id).partition("/")
        if metrics.recompile_reason and identity.isdigit() and again.isdigit():
            # "0/0: tensor 'x' size mismatch ...": which compilation the guard belongs to.
            reason = metrics.recompile_reason.partition(": ")[2] or metrics.recompile_reason
            reasons[int(identity), int(again)] = reason.strip()
    return reasons


def graph_breaks() -> Mapping[str, int]:
    """Why torch divided functions into several graphs, and how often, since its last reset."""
    return Counter({_in_one_line(text): count for text, count in counters["graph_break"].items()})


def _in_one_line(text: str) -> str:
    """Torch's summary, explanation and first hint of a graph break."""
    summary, *rest = [line.strip() for line in text.splitlines() if line.strip()]
    found: dict[str, str] = {}
    for line in rest:
        head, colon, words = line.partition(": ")
        if colon:
            found.setdefault(head, words)
    explained = [found[head] for head in ("Explanation", "Hint") if head in found]
    return ": ".join([summary, " ".join(explained)]) if explained else summary
