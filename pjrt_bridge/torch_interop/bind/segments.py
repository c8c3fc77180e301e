"""Segments of ATen graphs, on the device and in PyTorch.

Values cross as they are: a device segment hands on buffers, a host segment tensors, and each takes
what it gets as its own kind, over the same memory where the plugin uses host memory. What the
device fails to do in a call, PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import fx

from pjrt_bridge import timeline
from pjrt_bridge.errors import DEVICE_FAILURES, PjrtBridgeError, PjrtError
from pjrt_bridge.mixed.launch import PATIENCE, Crossing, Launch
from pjrt_bridge.mixed.program import Call
from pjrt_bridge.runtime import Executable
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind.paths import Dispatched, path_of
from pjrt_bridge.torch_interop.bind.shortcut import Shortcut
from pjrt_bridge.torch_interop.emit.program import Argument, Computed, Constant, Emitted
from pjrt_bridge.torch_interop.nodes import source_line


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
            if type(value) is Crossing:
                values[index] = value.tensor()
        results: Sequence[Any]
        if timeline.current is not None:
            given = tuple(values)
            values.clear()
            with torch.no_grad():
                results = _Told(self._module).run(*given, enable_io_processing=False)
            return results
        # To turn off what is off already takes as long as a small operator.
        if not torch.is_grad_enabled():
            results = self._forward(values)
        else:
            with torch.no_grad():
                results = self._forward(values)
        return results


class _Told(fx.Interpreter):
    """Runs a graph node by node, each a span on the timeline."""

    def run_node(self, n: fx.Node) -> Any:
        """The value of a node."""
        if n.op != "call_function":
            return super().run_node(n)
        details = {"operator": compat.label(n.target)}
        source = source_line(n)
        with timeline.span(n.name, **details, **({"source": source} if source else {})):
            return super().run_node(n)


class DeviceSegment:
    """An ATen graph, or a part of one, as one executable.

    Args:
        executable: compiled from `emitted.program`.
        emitted: how arguments and outputs map to it.
        static: positions of parameters and buffers, which keep their device buffers.
        host: the same in PyTorch, for when the device fails.
        on_failure: told each failure of the device; raises it where the host is forbidden.

    Attributes:
        shares: results are read where they lie.
    """

    def __init__(
        self,
        executable: Executable,
        emitted: Emitted,
        static: frozenset[int],
        host: HostSegment,
        on_failure: Callable[[PjrtBridgeError], None],
    ) -> None:
        self.executable = executable
        self.emitted = emitted
        self._on_failure = on_failure
        self._host = host
        self._failures = 0
        self._path = path_of(executable, emitted, static)
        self.shares = executable.client.shares_host_memory
        self._bytes = [result.form.type.nbytes for result in emitted.results]
        self._all_bytes = sum(self._bytes)
        # Most segments give what their programs compute, and nothing else.
        self._plain = emitted.outputs == tuple(map(Computed, range(len(emitted.results))))
        self._shortcut: Shortcut | None = None

    def shortcut(self) -> Shortcut | None:
        """A way for calls that go as the call before; None where there is none."""
        if self._plain and not self.emitted.mutations and isinstance(self._path, Dispatched):
            self._shortcut = Shortcut(self._path, self._all_bytes)
        return self._shortcut

    def run(self, given: Sequence[Any], call: Call) -> list[torch.Tensor] | None:
        """The program's results, there; None where the device failed, and nothing was changed.

        `instead` gives the outputs then.

        Raises:
            PjrtError: a program that writes into arguments failed on the way.
        """
        if self._failures >= PATIENCE:
            return None
        started = None
        try:
            started = self._path.launch(given, call)
            started.finish()
            tensors = started.tensors()
        except DEVICE_FAILURES as error:
            self._failed(error)
            if self.emitted.written and not _came_before(error):
                error.add_note(
                    "The program may have begun to write into its arguments, so PyTorch cannot "
                    "compute it instead: tensors that it updates may hold old, new or partial "
                    "values."
                )
                raise
            return None
        self._failures = 0
        call.crossed(call.at, self._all_bytes, shared=self.shares)
        if self._shortcut is not None:
            self._shortcut.open()
        return tensors

    def start(self, values: list[Any], call: Call) -> Sequence[Any]:
        """The outputs of a part of a graph, on their way; waits for nothing.

        Takes tensors, and what other parts have started.
        """
        if self._failures >= PATIENCE:
            return self._host.start(values, call)
        try:
            started = self._path.launch(values, call)
        except DEVICE_FAILURES as error:
            self._failed(error)
            return self.instead(values, call)
        launch = Launch(self, values, started, call)
        call.began(launch)
        results = [Crossing(launch, index, item) for index, item in enumerate(started.outputs)]
        return self.outputs(values, results)

    def outputs(self, given: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
        """The graph's outputs, from its arguments and the results of its program."""
        if self._plain:
            return results
        return [_output(item, given, results) for item in self.emitted.outputs]

    def count(self, index: int, at: int, call: Call) -> None:
        """Count a result that crosses to the host."""
        call.crossed(at, self._bytes[index], shared=self.shares)

    def succeeded(self) -> None:
        """Note a launch that went well."""
        self._failures = 0

    def recover(self, values: list[Any], call: Call, error: PjrtBridgeError) -> Mapping[int, Any]:
        """The program's results by index, from PyTorch, after the device failed."""
        self._failed(error)
        outputs = self.instead(values, call)
        return {
            item.result: value
            for item, value in zip(self.emitted.outputs, outputs, strict=True)
            if isinstance(item, Computed)
        }

    def instead(self, values: list[Any], call: Call) -> Sequence[Any]:
        """The outputs from PyTorch, after the device failed.

        What PyTorch refuses too, such as a place out of range, is no fault of the device.
        """
        outputs = self._host.start(values, call)
        self._failures += 1
        return outputs

    def _failed(self, error: PjrtBridgeError) -> None:
        if self._shortcut is not None:
            self._shortcut.close()
        self._on_failure(error)


def _came_before(error: PjrtBridgeError) -> bool:
    """Whether a failure is that of a step before the execution.

    An execution may fail after it has written: plugins run small programs inside the call.
    """
    return isinstance(error, PjrtError) and error.function == "Client_BufferFromHostBuffer"


def _output(
    item: Argument | Computed | Constant, given: Sequence[Any], results: Sequence[Any]
) -> Any:
    """An output of a graph, from its arguments and the results of its program."""
    if isinstance(item, Computed):
        return results[item.result]
    return given[item.position] if isinstance(item, Argument) else item.value
