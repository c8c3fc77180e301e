"""Arguments that a graph writes into and returns, beside those that AOTAutograd writes after it.

The function that AOTAutograd traces gives new values of the arguments that are written into after
the graph (those with gradients, say), then the results. Where a result is an argument that is
written into by the graph itself, AOTAutograd (torch 2.13) puts that argument in its place, but
counts places without the new values in front: of `w.data.add_(1); return torch.sigmoid(x, out=y)`
it takes `y` for the new value of `w`, and writes it there.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any

from torch._functorch._aot_autograd import graph_capture
from torch._functorch._aot_autograd.schemas import OutputType

_COUNTED_WRONG = "flat_outs[i] = fw_args[info.base_idx]"


def keep_places_of_results() -> None:
    """Have AOTAutograd, with any backend, count places of results behind the new values.

    Nothing is changed where PyTorch's source has other lines than those that count wrong.
    """
    capture: Any = graph_capture
    before = getattr(capture, "create_functionalized_fn", None)
    if before is None or _COUNTED_WRONG not in _source(before):
        return

    def functionalized(*args: Any, meta: Any, **kwargs: Any) -> Any:
        return before(*args, meta=_with_new_values(meta), **kwargs)

    capture.create_functionalized_fn = functionalized


@dataclass(frozen=True)
class _NewValue:
    """The kind of result that the function does not look into further."""

    output_type: OutputType = OutputType.non_alias


def _with_new_values(meta: Any) -> Any:
    """What is known of a graph, with an entry of the results for each new value of an argument."""
    if not meta.num_mutated_inp_runtime_indices:
        return meta
    # Not a call of the constructor: it would compute the rest anew, and lists that the function
    # appends to have to remain those of the caller.
    with_new = copy.copy(meta)
    with_new.output_info = [
        *[_NewValue()] * meta.num_mutated_inp_runtime_indices,
        *meta.output_info,
    ]
    return with_new


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""
