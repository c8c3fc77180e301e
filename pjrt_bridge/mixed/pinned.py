"""Buffers of arguments that are kept between calls: parameters, and what stays where it is.

Where the plugin uses host memory in place such a buffer is a view. It follows in-place updates, and
holds while the value keeps its memory. Elsewhere it is a copy, made again when the value's version
moved. Where neither can be had the value goes in with each call.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from pjrt_bridge.mixed.adapter import FrameworkAdapter
from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.runtime import Buffer, ClientCore
from pjrt_bridge.runtime.buffers import putting
from pjrt_bridge.runtime.dispatch.plans import BoundParameter, PinnedBuffers

_MAX_MOVES = 8
"""Moves in quick succession after which a value goes in with each call."""

_QUICK_SECONDS = 1.0
"""Seconds between moves in quick succession."""


class _PinnedState(NamedTuple):
    """What is pinned now: one object, so that other threads see marks and buffers that fit."""

    marks: Mapping[int, object]
    buffers: Sequence[Buffer | None]
    dispatched: PinnedBuffers


class PinnedInputs:
    """The pinned parameters of one program.

    Args:
        adapter: of the values' framework.
        client: where the buffers live.
        parameters: of the program.
        constants: buffers of the parameters that have no position, in their order.
        pinned: positions of the values to pin.
    """

    def __init__(
        self,
        adapter: FrameworkAdapter,
        client: ClientCore,
        parameters: Sequence[BoundParameter],
        constants: Sequence[Buffer],
        pinned: Collection[int],
    ) -> None:
        self._adapter = adapter
        self._client = client
        self._parameters = parameters
        self._in_place = client.shares_host_memory
        given = iter(constants)
        self._constants = [
            next(given) if parameter.position is None else None for parameter in parameters
        ]
        self._candidates = [
            index
            for index, parameter in enumerate(parameters)
            if parameter.position in pinned and not parameter.written
        ]
        self._moves = dict.fromkeys(self._candidates, 0)
        self._moved_at = 0.0
        self._extra: frozenset[int] = frozenset()
        self._state: _PinnedState | None = None if self._candidates else self._pin({}, {})

    @property
    def dispatched(self) -> PinnedBuffers | None:
        """What the dispatcher takes; None before the first call of a program that pins values."""
        return None if self._state is None else self._state.dispatched

    @property
    def added_bytes(self) -> int:
        """Bytes of the values that `add` pinned, which no call counts."""
        return sum(self._parameters[index].spec.nbytes for index in self._extra)

    def add(self, positions: Collection[int], given: Sequence[Any]) -> None:
        """Pin these values, too, until one of them moves."""
        self._extra = frozenset(
            index
            for index, parameter in enumerate(self._parameters)
            if parameter.position in positions
            and index not in self._moves
            and not parameter.written
        )
        self.renew(given, CallRecord(1))

    def moved(self, given: Sequence[Any], call: CallRecord) -> PinnedBuffers:
        """Pin anew what is in other memory than it was."""
        self._extra = frozenset()
        return self.renew(given, call)

    def renew(self, given: Sequence[Any], call: CallRecord) -> PinnedBuffers:
        """Pin the values as they are now."""
        now = time.monotonic()
        if now - self._moved_at > _QUICK_SECONDS:
            self._moves = dict.fromkeys(self._candidates, 0)
        self._moved_at = now
        marks: dict[int, object] = {}
        buffers: dict[int, Buffer] = {}
        for index in (*self._candidates, *self._extra):
            parameter = self._parameters[index]
            assert parameter.position is not None
            value = self._adapter.snapshot(given[parameter.position])
            mark = self._mark(value)
            if mark is None:
                continue
            if self._state is not None and index in self._state.marks:
                old = self._state.buffers[index]
                if self._state.marks[index] == mark and old is not None:
                    marks[index], buffers[index] = mark, old
                    continue
                self._moves[index] = self._moves.get(index, 0) + 1
            if self._in_place and self._moves.get(index, 0) > _MAX_MOVES:
                continue
            host = self._adapter.host_array(value, parameter.spec)
            shared = self._in_place and host.shareable and host.address == mark
            if shared or not self._in_place:
                marks[index], buffers[index] = mark, putting.put_host(self._client, host)
                call.crossed(call.at, parameter.spec.nbytes, shared=shared)
        self._state = self._pin(marks, buffers)
        return self._state.dispatched

    def buffers(self, given: Sequence[Any], call: CallRecord) -> Sequence[Buffer | None]:
        """For each parameter its buffer, None where the value of the call is taken."""
        state = self._state
        if state is None or any(
            self._mark(given[position]) != mark
            for index, mark in state.marks.items()
            if (position := self._parameters[index].position) is not None
        ):
            self.renew(given, call)
        assert self._state is not None
        return self._state.buffers

    def _mark(self, value: Any) -> object:
        return self._adapter.address(value) if self._in_place else self._adapter.version(value)

    def _pin(self, marks: Mapping[int, object], buffers: Mapping[int, Buffer]) -> _PinnedState:
        found = [buffers.get(index, constant) for index, constant in enumerate(self._constants)]
        addresses = [
            mark if self._in_place and isinstance(mark := marks.get(index), int) else 0
            for index in range(len(found))
        ]
        return _PinnedState(marks, found, PinnedBuffers(found, addresses))
