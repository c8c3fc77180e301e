"""Calls of operators that the compiled module tells from others, and that are recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import NotImplementedType
from typing import Any

import torch

from pjrt_bridge.torch_interop import precision
from pjrt_bridge.torch_interop.device.recording.merging import Recordable
from pjrt_bridge.torch_interop.device.recording.recording import recorder
from pjrt_bridge.torch_interop.resident.calls.calls import OperatorSchema, argument
from pjrt_bridge.torch_interop.resident.calls.shortcuts import CallNumbers
from pjrt_bridge.torch_interop.resident.storages.storage import Contents, has_divided


class Replay:
    """What records further calls of an operator, without the way through Python before that.

    Args:
        part: the graph of the operator.
        form: of the operator.
        layout: see `CallProgram`.
        index: of the device.
        added: what the graph is given behind the arrays of a call.
        again: see `CallProgram`.
    """

    __slots__ = ("_added", "_again", "_index", "_layout", "_lifted", "_part", "_returns")

    def __init__(
        self,
        part: Recordable,
        form: OperatorSchema,
        layout: tuple[Any, ...],
        index: int,
        added: CallNumbers,
        again: Callable[..., Any],
    ) -> None:
        self._part = part
        self._returns = form.returns
        self._layout = layout
        self._index = index
        self._lifted = added.lifted
        self._added = added if added.steps or added.conditions else None
        self._again = again

    def __call__(
        self,
        given: list[Contents | torch.Tensor | None],
        numbers: tuple[float, ...],
        values: tuple[Any, ...],
        keywords: Mapping[str, Any] | None,
    ) -> Any | NotImplementedType:
        """What the operator gives; see `Operators.learn`."""
        part = self._part
        if precision.settings() is not part.settings or has_divided(given):
            return NotImplemented
        if self._added is not None:
            added = self._added(numbers)
            if added is None:
                return NotImplemented
            if self._lifted:
                given.extend([None] * len(numbers))
            given.extend(added)
        again = partial(self._again, numbers=numbers) if numbers else self._again
        outputs = recorder(self._index).record(part, again, given)
        if len(self._layout) == 1 and self._returns[0] is None:
            return laid_out(self._layout[0], outputs)
        return results_of(self._returns, self._layout, outputs, values[1:], keywords or {})


def results_of(
    returns: tuple[tuple[str, int] | None, ...],
    layout: tuple[Any, ...],
    outputs: list[Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """What an operator gives, of the outputs of its graph and its arguments.

    Args:
        returns: see `OperatorSchema`.
        layout: see `CallProgram`.
        outputs: of the graph.
        args: positional arguments.
        kwargs: keyword arguments.
    """
    if not returns:
        return None
    results = tuple(
        laid_out(where, outputs) if place is None else argument(place, args, kwargs)
        for place, where in zip(returns, layout, strict=True)
    )
    return results if len(results) > 1 else results[0]


def laid_out(where: Any, outputs: list[Any]) -> Any:
    """A result: an output by its place, or a list of some."""
    if isinstance(where, list):
        return [laid_out(item, outputs) for item in where]
    return outputs[where]
