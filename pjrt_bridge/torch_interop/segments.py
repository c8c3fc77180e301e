"""Running a compiled graph on tensors."""

from __future__ import annotations

from typing import Any

import torch

from pjrt_bridge.runtime import Buffer, Client, Executable
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit import Argument, Computed, Constant, Emitted
from pjrt_bridge.torch_interop.tensors import StaticInputs


class DeviceSegment:
    """A whole ATen graph as one executable.

    A run waits before it returns: arguments are shared with the plugin, and their owner may write
    to them next.

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
        """The graph's outputs; empties the list of arguments (AOTAutograd's convention)."""
        given = list(arguments)
        arguments.clear()
        buffers, done = self.executable.submit(self._buffers(given))
        try:
            done.wait()
        finally:
            done.close()
        tensors = [
            result.tensor(buffer)
            for result, buffer in zip(self.emitted.results, buffers, strict=True)
        ]
        if self.emitted.mutations:
            with torch.no_grad():
                for position, index in self.emitted.mutations:
                    given[position].copy_(tensors[index])
        return [_output(item, given, tensors) for item in self.emitted.outputs]

    def _buffers(self, given: list[Any]) -> list[Any]:
        buffers = self._template.copy()
        static = self._static.buffers([given[position] for _, position in self._kept])
        for (index, _), buffer in zip(self._kept, static, strict=True):
            buffers[index] = buffer
        put = self._client.put_host
        for index, position, form in self._given:
            buffers[index] = put(form.to_host_array(given[position]))
        return buffers


def _output(
    item: Argument | Computed | Constant, given: list[Any], tensors: list[torch.Tensor]
) -> Any:
    if isinstance(item, Computed):
        return tensors[item.result]
    return given[item.position] if isinstance(item, Argument) else item.value
