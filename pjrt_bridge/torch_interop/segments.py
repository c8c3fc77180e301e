"""Running a compiled graph on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pjrt_bridge.runtime import Buffer, Client, Executable
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit import Argument, Computed, Constant, Emitted
from pjrt_bridge.torch_interop.tensors import Form, Result, StaticInputs


class Crossing:
    """A result of a device segment on its way: a buffer, and a tensor when a host segment asks."""

    __slots__ = ("_tensor", "buffer", "result")

    def __init__(self, buffer: Buffer, result: Result) -> None:
        self.buffer = buffer
        self.result = result
        self._tensor: torch.Tensor | None = None

    def tensor(self) -> torch.Tensor:
        """The tensor over the buffer's memory; waits for the values."""
        if self._tensor is None:
            self._tensor = self.result.tensor(self.buffer)
        return self._tensor


def tensor_of(value: Any) -> Any:
    """A value as PyTorch takes it."""
    return value.tensor() if isinstance(value, Crossing) else value


class DeviceSegment:
    """An ATen graph as one executable.

    Args:
        executable: compiled from `emitted.program`.
        emitted: how arguments and outputs map to it.
        static: positions of parameters and buffers, which keep their device buffers.
    """

    def __init__(self, executable: Executable, emitted: Emitted, static: frozenset[int]) -> None:
        self.executable = executable
        self.emitted = emitted
        client = executable.client
        self._client: Client = client
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

    def run(self, arguments: list[Any]) -> list[Any]:
        """The outputs of a whole graph; empties the list of arguments (AOTAutograd's convention).

        Waits before it returns: arguments are shared with the plugin, and their owner may write to
        them next.
        """
        given = list(arguments)
        arguments.clear()
        buffers, done = self.executable.submit(self._buffers(given))
        try:
            done.wait()
        finally:
            done.close()
        for buffer in buffers:
            buffer.mark_ready()
        tensors = [
            result.tensor(buffer)
            for result, buffer in zip(self.emitted.results, buffers, strict=True)
        ]
        if self.emitted.mutations:
            with torch.no_grad():
                for position, index in self.emitted.mutations:
                    given[position].copy_(tensors[index])
        return [_output(item, given, tensors) for item in self.emitted.outputs]

    def start(self, values: list[Any]) -> list[Any]:
        """The outputs of a part of a graph, on their way; waits for nothing.

        Takes tensors, and what other parts have started.
        """
        buffers = self.executable.execute(self._buffers(values))
        results = [
            Crossing(buffer, result)
            for buffer, result in zip(buffers, self.emitted.results, strict=True)
        ]
        return [_output(item, values, results) for item in self.emitted.outputs]

    def _buffers(self, given: list[Any]) -> list[Any]:
        buffers = self._template.copy()
        static = self._static.buffers([given[position] for _, position in self._kept])
        for (index, _), buffer in zip(self._kept, static, strict=True):
            buffers[index] = buffer
        for index, position, form in self._given:
            buffers[index] = self._buffer(given[position], form)
        return buffers

    def _buffer(self, value: Any, form: Form) -> Buffer:
        if isinstance(value, Crossing):
            if value.result.form == form:
                return value.buffer
            value = value.tensor()
        return self._client.put_host(form.to_host_array(value))


def _output(
    item: Argument | Computed | Constant, given: Sequence[Any], results: Sequence[Any]
) -> Any:
    if isinstance(item, Computed):
        return results[item.result]
    return given[item.position] if isinstance(item, Argument) else item.value
