"""What eager mode's results are like where the option `layouts` asks for another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pjrt_bridge.torch_interop.passes.layouts import OrderRule, order_of
from tests.differential.observing import Call, Seen


def laid_out(calls: Sequence[Call], rule: OrderRule | None) -> list[Call]:
    """The calls with results in the order of a rule, as far as they have memory of their own."""
    return list(calls) if rule is None else [_laid_out(call, rule) for call in calls]


def _laid_out(call: Call, rule: OrderRule) -> Call:
    moved = {
        place: replace(seen, strides=strides, offset=0, bits=(False, False))
        for place, seen in {**call.results, **call.held}.items()
        if isinstance(seen, Seen) and place in call.alone
        if (strides := _strides(seen.shape, rule)) is not None
    }
    # What overlaps itself cannot be written into, but lies apart in an order.
    writes = {
        place: frozenset() if place in moved and isinstance(found, str) else found
        for place, found in call.writes.items()
    }
    results = {place: moved.get(place, seen) for place, seen in call.results.items()}
    held = {place: moved.get(place, seen) for place, seen in call.held.items()}
    return replace(call, results=results, held=held, writes=writes)


def _strides(shape: Sequence[int], rule: OrderRule) -> tuple[int, ...] | None:
    order = order_of(rule, len(shape))
    if order is None:
        return None
    strides = [0] * len(shape)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)
