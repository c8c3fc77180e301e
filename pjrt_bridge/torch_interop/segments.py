"""Running a compiled graph on tensors."""

from __future__ import annotations

from typing import Any

import torch

from pjrt_bridge.runtime import Buffer, Client, Executable
from pjrt_bridge.torch_interop.emit import Argument, Computed, Emitted
from pjrt_bridge.torch_interop.tensors import StaticInput, to_tensor


class DeviceSegment:
    """A whole ATen graph as one executable.

    A run waits before it returns:
    arguments are shared with the plugin, and their owner may write to them next.

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
        self._inputs = [
            (position, form, StaticInput(client, form) if position in static else None)
            for position, form in emitted.inputs
        ]
        self._captured = [
            client.put_host(form.to_host_array(tensor.detach()))
            for tensor, form in emitted.captured
        ]

    def run(self, arguments: list[Any]) -> list[Any]:
        """The graph's outputs; empties the list of arguments (AOTAutograd's convention)."""
        given = list(arguments)
        arguments.clear()
        outputs, done = self.executable.submit([*self._buffers(given), *self._captured])
        try:
            done.wait()
        finally:
            done.close()
        tensors: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            for position, computed in self.emitted.mutations:
                given[position].copy_(self._tensor(computed, outputs, tensors))
        return [self._output(item, given, outputs, tensors) for item in self.emitted.outputs]

    def _buffers(self, given: list[Any]) -> list[Buffer]:
        put = self._client.put_host
        return [
            put(form.to_host_array(given[position].detach()))
            if static is None
            else static.buffer(given[position])
            for position, form, static in self._inputs
        ]

    def _output(
        self,
        item: Any,
        given: list[Any],
        outputs: tuple[Buffer, ...],
        tensors: dict[int, torch.Tensor],
    ) -> Any:
        if isinstance(item, Argument):
            return given[item.position]
        if isinstance(item, Computed):
            return self._tensor(item, outputs, tensors)
        return item.value

    @staticmethod
    def _tensor(
        item: Computed, outputs: tuple[Buffer, ...], tensors: dict[int, torch.Tensor]
    ) -> torch.Tensor:
        found = tensors.get(item.result)
        if found is None:
            found = tensors[item.result] = to_tensor(outputs[item.result], item.form)
        return found
