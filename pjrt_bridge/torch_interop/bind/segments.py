"""Segments of ATen graphs: on the device by the execution core, and in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from pjrt_bridge import timeline
from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.mixed.execution import CallRecord, DeferredValue, ResidentValue
from pjrt_bridge.mixed.launchers import launcher_of
from pjrt_bridge.mixed.mesh_launcher import Division, MeshLauncher
from pjrt_bridge.mixed.segment import DeviceSegment
from pjrt_bridge.runtime import Executable, ShardedExecutable
from pjrt_bridge.runtime.buffers import putting
from pjrt_bridge.runtime.objects.mesh_program import MeshProgram
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER, TorchAdapter
from pjrt_bridge.torch_interop.emit.program import Emitted
from pjrt_bridge.torch_interop.nodes import label, source_line
from pjrt_bridge.torch_interop.passes.lift_scalars import for_pytorch
from pjrt_bridge.torch_interop.placement.collectives import exchanges_in


class HostSegment:
    """A graph, or a part of one, that runs in PyTorch, operator by operator."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module

    @cached_property
    def _forward(self) -> Callable[[list[Any]], Any]:
        # Most segments that could run here never do.
        module = for_pytorch(self._module)
        return compat.boxed_module(module, module.graph)

    def start(self, values: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs; empties the list.

        An operator's exception passes through; that of a collective operation with a note which
        names operations and processes.
        """
        try:
            return self._start(values)
        except Exception as error:
            note = exchanges_in(self._module.graph)
            if note is not None:
                error.add_note(note)
            raise

    def _start(self, values: list[Any]) -> Sequence[Any]:
        for index, value in enumerate(values):
            if isinstance(value, (DeferredValue, ResidentValue)):
                values[index] = value.tensor()
        with compat.without_autocast():
            # To turn off what is off already takes as long as a small operator.
            if not torch.is_grad_enabled():
                return self._run(values)
            with torch.no_grad():
                return self._run(values)

    def _run(self, values: list[Any]) -> Sequence[Any]:
        results: Sequence[Any]
        if timeline.current is None:
            results = self._forward(values)
        else:
            given = tuple(values)
            values.clear()
            results = _Observed(self._module).run(*given, enable_io_processing=False)
        return [_without_view(item) if isinstance(item, torch.Tensor) else item for item in results]


def _without_view(result: torch.Tensor) -> torch.Tensor:
    """A tensor in the memory of a result, which autograd does not take for a view.

    Autograd sees a graph as a custom function, and refuses to write into views that one returns.
    AOTAutograd itself makes the results that are views in the user's program.
    """
    if not result._is_view():
        return result
    made: torch.Tensor = torch.ops.aten._unsafe_view.default(result, result.shape)
    if made.stride() != result.stride():
        made.as_strided_(result.shape, result.stride(), result.storage_offset())
    return made


class _Observed(fx.Interpreter):
    """Runs a graph node by node, each a span on the timeline."""

    def run_node(self, n: fx.Node) -> Any:
        """The value of a node."""
        if n.op != "call_function":
            return super().run_node(n)
        details = {"operator": label(n)}
        source = source_line(n)
        with timeline.span(n.name, **details, **({"source": source} if source else {})):
            return super().run_node(n)


def device_segment(
    executable: Executable,
    emitted: Emitted,
    static: frozenset[int],
    host: HostSegment,
    on_failure: Callable[[PjrtBridgeError], None],
    adapter: TorchAdapter = ADAPTER,
) -> DeviceSegment:
    """An ATen graph, or a part of one, as one executable.

    Args:
        executable: compiled from `emitted.program`.
        emitted: how arguments and outputs map to it.
        static: positions of parameters and buffers, which keep their device buffers.
        host: the same in PyTorch, for when the device fails.
        on_failure: told each failure of the device; raises it where the host is forbidden.
        adapter: of the values that it is given.
    """
    client = executable.client
    bindings = replace(emitted.bindings, pinned=static)
    with compat.real_tensors():
        constants = [
            putting.put_host(client, adapter.host_array(tensor, spec), executable.devices[0])
            for tensor, spec in zip(emitted.captured, emitted.captured_specs, strict=True)
        ]
    return DeviceSegment(
        launcher_of(executable, bindings, adapter, constants),
        bindings,
        adapter,
        host.start,
        on_failure,
        shares=client.shares_host_memory,
    )


def mesh_segment(
    program: MeshProgram,
    emitted: Emitted,
    host: HostSegment,
    on_failure: Callable[[PjrtBridgeError], None],
    adapter: TorchAdapter,
    division: Division,
    compiled: Callable[[ShardedExecutable, float], None],
) -> DeviceSegment:
    """An ATen graph, or a part of one, over the mesh of the values that it is given.

    Args:
        program: of `emitted.program`.
        emitted: how arguments and outputs map to it.
        host: see `device_segment`.
        on_failure: see `device_segment`.
        adapter: see `device_segment`.
        division: how values are divided that are not.
        compiled: told each executable, and the seconds that it took.
    """
    with compat.real_tensors():
        constants = [
            adapter.host_array(tensor, spec)
            for tensor, spec in zip(emitted.captured, emitted.captured_specs, strict=True)
        ]
    launcher = MeshLauncher(program, emitted.bindings, adapter, constants, division, compiled)
    return DeviceSegment(launcher, emitted.bindings, adapter, host.start, on_failure, shares=False)
