"""Results that are arguments which a graph writes into: their places among all results.

The function that AOTAutograd traces gives first the new values of those arguments that are written
into after the graph has run (such as those with gradients), then the results. Where a result is an
argument that the graph itself writes into, AOTAutograd (torch 2.13) puts that argument in its
place, but counts places without the new values in front: of
`w.data.add_(1); return torch.sigmoid(x, out=y)` it takes `y` for the new value of `w`, and writes
it there.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch._functorch._aot_autograd import graph_capture
from torch._functorch._aot_autograd.schemas import OutputType

_COUNTS_WRONG = "flat_outs[i] = fw_args[info.base_idx]"
"""The line of PyTorch's source in which `i` counts the results alone."""


def keep_places_of_results() -> None:
    """Have AOTAutograd, with any backend, count places of results behind the new values.

    Nothing is changed where PyTorch's source does not hold the line that counts wrong.
    """
    capture: Any = graph_capture
    before = getattr(capture, "create_functionalized_fn", None)
    if before is None:
        return

    def functionalized(*args: Any, meta: Any, **kwargs: Any) -> Any:
        # The source is read when it matters first, not when PyTorch is imported.
        if meta.num_mutated_inp_runtime_indices and _COUNTS_WRONG in _source(before):
            meta = _with_new_values(meta)
        return before(*args, meta=meta, **kwargs)

    capture.create_functionalized_fn = functionalized


@dataclass(frozen=True)
class _NewValue:
    """What is known of the new value of an argument: it is a result that is no argument."""

    output_type: OutputType = OutputType.non_alias


def _with_new_values(meta: Any) -> Any:
    """What is known of a graph, with an entry for each new value in front of those of results."""
    # Not a call of the constructor: it would compute the rest anew, and lists that the function
    # appends to have to remain those of the caller.
    with_new = copy.copy(meta)
    with_new.output_info = [
        *[_NewValue()] * meta.num_mutated_inp_runtime_indices,
        *meta.output_info,
    ]
    return with_new


@cache
def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""
