"""Segments of ATen graphs, on the device and in PyTorch.

Values cross as they are: a device segment hands on buffers, a host segment tensors, and each takes
what it gets as its own kind, over the same memory where the plugin uses host memory. What the
device fails to do in a call, PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from torch import fx

from pjrt_bridge.errors import PjrtError
from pjrt_bridge.mixed.program import Call
from pjrt_bridge.runtime import Buffer, Client, Event, Executable
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit import Argument, Computed, Constant, Emitted
from pjrt_bridge.torch_interop.tensors import Form, Result, StaticInputs, put

PATIENCE = 3
"""Failures in a row after which a segment is not tried on the device again."""


class HostSegment:
    """A graph, or a part of one, that runs in PyTorch, operator by operator."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module

    @cached_property
    def _forward(self) -> Callable[[list[Any]], Any]:
        # Most segments that could run here never do.
        return compat.boxed_module(self._module, self._module.graph)

    def start(self, values: list[Any], call: Call) -> Sequence[Any]:
        """The outputs; empties the list. An operator's exception passes through unchanged."""
        for index, value in enumerate(values):
            values[index] = tensor_of(value)
        with torch.no_grad():
            results: Sequence[Any] = self._forward(values)
        return results


class DeviceSegment:
    """An ATen graph, or a part of one, as one executable.

    Args:
        executable: compiled from `emitted.program`.
        emitted: how arguments and outputs map to it.
        static: positions of parameters and buffers, which keep their device buffers.
        host: the same in PyTorch, for when the device fails.
        on_failure: told each failure of the device; raises it where the host is forbidden.
    """

    def __init__(
        self,
        executable: Executable,
        emitted: Emitted,
        static: frozenset[int],
        host: HostSegment,
        on_failure: Callable[[PjrtError], None],
    ) -> None:
        self.executable = executable
        self.emitted = emitted
        client = executable.client
        self._client: Client = client
        self._host = host
        self._on_failure = on_failure
        self._failures = 0
        # (index among the program's parameters, position among the graph's arguments, form)
        inputs = [(index, *item) for index, item in enumerate(emitted.inputs)]
        kept = [item for item in inputs if item[1] in static]
        self._given = [item for item in inputs if item[1] not in static]
        self._kept = [(index, position) for index, position, _ in kept]
        self._static = StaticInputs(client, [form for *_, form in kept])
        with compat.real_tensors():
            captured = [
                client.put_host(form.to_host_array(tensor)) for tensor, form in emitted.captured
            ]
        self._template: list[Buffer | None] = [*(None for _ in inputs), *captured]

    def run(self, given: Sequence[Any], call: Call) -> list[torch.Tensor] | None:
        """The program's results, there; None where the device failed, and nothing was changed."""
        if self._failures >= PATIENCE:
            return None
        try:
            buffers, done = self.executable.submit(self._buffers(given, call))
            _wait(buffers, done)
        except PjrtError as error:
            self._failed(error)
            return None
        self._failures = 0
        return [
            _tensor(result, buffer, call, call.at)
            for result, buffer in zip(self.emitted.results, buffers, strict=True)
        ]

    def start(self, values: list[Any], call: Call) -> Sequence[Any]:
        """The outputs of a part of a graph, on their way; waits for nothing.

        Takes tensors, and what other parts have started.
        """
        if self._failures >= PATIENCE:
            return self._host.start(values, call)
        try:
            buffers, done = self.executable.submit(self._buffers(values, call))
        except PjrtError as error:
            return self.recover(values, call, error)
        launch = Launch(self, values, buffers, done, call)
        call.began(launch)
        results = [
            Crossing(launch, index, buffer, result)
            for index, (buffer, result) in enumerate(
                zip(buffers, self.emitted.results, strict=True)
            )
        ]
        return [output(item, values, results) for item in self.emitted.outputs]

    def succeeded(self) -> None:
        """Note a launch that went well."""
        self._failures = 0

    def recover(self, values: list[Any], call: Call, error: PjrtError) -> Sequence[Any]:
        """The outputs, from PyTorch, after the device failed."""
        self._failed(error)
        return self._host.start(values, call)

    def _failed(self, error: PjrtError) -> None:
        self._on_failure(error)
        self._failures += 1

    def _buffers(self, given: Sequence[Any], call: Call) -> list[Any]:
        buffers = self._template.copy()
        if self._kept:
            tensors = [given[position] for _, position in self._kept]
            static = self._static.buffers(tensors, call)
            for (index, _), buffer in zip(self._kept, static, strict=True):
                buffers[index] = buffer
        for index, position, form in self._given:
            buffers[index] = self._buffer(given[position], form, call)
        return buffers

    def _buffer(self, value: Any, form: Form, call: Call) -> Buffer:
        if isinstance(value, Crossing):
            if value.result.form == form and not value.recovered:
                return value.buffer
            value = value.tensor()
        buffer, _ = put(self._client, form, value, call)
        return buffer


class Launch:
    """A run of a device segment that may not have ended."""

    __slots__ = ("_at", "_buffers", "_call", "_done", "_segment", "_values", "recovered")

    def __init__(
        self,
        segment: DeviceSegment,
        values: list[Any],
        buffers: Sequence[Buffer],
        done: Event,
        call: Call,
    ) -> None:
        self._segment = segment
        # Kept until the end is known: if the device fails, PyTorch needs them.
        self._values = values
        self._buffers = buffers
        self._done: Event | None = done
        self._call = call
        self._at = call.at
        self.recovered: dict[int, Any] | None = None

    def finish(self) -> None:
        """Wait; where the device failed, compute in PyTorch."""
        done, self._done = self._done, None
        if done is None:
            return
        values, self._values = self._values, []
        try:
            _wait(self._buffers, done)
        except PjrtError as error:
            outputs = self._segment.recover(values, self._call, error)
            emitted = self._segment.emitted.outputs
            self.recovered = {
                item.result: value
                for item, value in zip(emitted, outputs, strict=True)
                if isinstance(item, Computed)
            }
        else:
            self._segment.succeeded()
        self._buffers = ()

    def abandon(self) -> None:
        """Wait for the end, well or not."""
        done, self._done = self._done, None
        if done is not None:
            with suppress(PjrtError):
                _wait(self._buffers, done)
        self._values, self._buffers = [], ()

    def tensor(self, index: int, buffer: Buffer, result: Result) -> torch.Tensor:
        """A result, once it is there."""
        self.finish()
        if self.recovered is not None:
            found: torch.Tensor = self.recovered[index]
            return found
        return _tensor(result, buffer, self._call, self._at)


class Crossing:
    """A result of a device segment on its way: a buffer, and a tensor when a host segment asks."""

    __slots__ = ("_index", "_launch", "_tensor", "buffer", "result")

    def __init__(self, launch: Launch, index: int, buffer: Buffer, result: Result) -> None:
        self._launch = launch
        self._index = index
        self._tensor: torch.Tensor | None = None
        self.buffer = buffer
        self.result = result

    @property
    def recovered(self) -> bool:
        """Whether the device failed, so that the buffer holds nothing."""
        return self._launch.recovered is not None

    def tensor(self) -> torch.Tensor:
        """The tensor over the buffer's memory; waits for the values."""
        if self._tensor is None:
            self._tensor = self._launch.tensor(self._index, self.buffer, self.result)
        return self._tensor


def tensor_of(value: Any) -> Any:
    """A value as PyTorch takes it."""
    return value.tensor() if isinstance(value, Crossing) else value


def output(
    item: Argument | Computed | Constant, given: Sequence[Any], results: Sequence[Any]
) -> Any:
    """An output of a graph, from its arguments and the results of its program."""
    if isinstance(item, Computed):
        return results[item.result]
    return given[item.position] if isinstance(item, Argument) else item.value


def _wait(buffers: Sequence[Buffer], done: Event) -> None:
    try:
        done.wait()
    finally:
        done.close()
    for buffer in buffers:
        buffer.mark_ready()


def _tensor(result: Result, buffer: Buffer, call: Call, at: int) -> torch.Tensor:
    call.crossed(at, result.form.type.nbytes, shared=buffer.client.shares_host_memory)
    return result.tensor(buffer)
