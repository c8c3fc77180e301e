"""How a device segment takes its arguments and starts: in C where that is offered, else in Python.

Both ways give the same: tensors, and results of other segments, go in; results come out that the
next segment takes as they are, and that become tensors when PyTorch asks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from pjrt_bridge.errors import DataError
from pjrt_bridge.mixed.launch import Crossing, Path, Started, Submitted, tensor_of
from pjrt_bridge.mixed.program import Call
from pjrt_bridge.runtime import Buffer, Client, Executable
from pjrt_bridge.runtime.dispatch.plans import Given, Kept
from pjrt_bridge.runtime.ownership import callbacks
from pjrt_bridge.runtime.ownership.handles import tidy
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind import threads
from pjrt_bridge.torch_interop.emit.program import Emitted
from pjrt_bridge.torch_interop.tensors import Form, Result, StaticInputs, framework, put, view

_SMALL = 1 << 16
"""Bytes of an argument that may be kept though it is no parameter."""
_PATIENCE = 100


def path_of(executable: Executable, emitted: Emitted, static: frozenset[int]) -> Path:
    """The fastest way to start a program.

    Args:
        executable: compiled from `emitted.program`.
        emitted: how arguments and outputs map to it.
        static: positions of parameters and buffers, which keep their device buffers.
    """
    path = _path_of(executable, emitted, static - emitted.written)
    return MakingWay(path) if threads.are_in_the_way(executable) else path


def _path_of(executable: Executable, emitted: Emitted, static: frozenset[int]) -> Path:
    client = executable.client
    with compat.real_tensors():
        captured = [
            client.put_host(form.to_host_array(tensor)) for tensor, form in emitted.captured
        ]
    torch_tensors = framework()
    if torch_tensors is not None:
        given = [
            Given(position, form.array, position in emitted.written)
            for position, form in emitted.inputs
        ]
        given += [Given(None, form.array) for _, form in emitted.captured]
        made = [result.made for result in emitted.results]
        plan = executable.plan(given, made, torch_tensors)
        if plan is not None:
            return Dispatched(plan, client, emitted, static, captured)
    return General(executable, emitted, static, captured)


class MakingWay:
    """Long programs on the cores that PyTorch's threads wait on.

    Args:
        path: starts the program.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def launch(self, values: Sequence[Any], call: Call) -> Started:
        """Start it on a graph's arguments; counts what crosses."""
        threads.release_openmp_threads()
        return self._path.launch(values, call)


# -- in C ------------------------------------------------------------------------------------------


class Dispatched:
    """Programs that the dispatcher starts.

    Attributes:
        plan: the dispatcher's.
        kept: arguments that stay from call to call; None before the first call of a program that
            has some.
        rearranged: some values of the last call did not go in as they were.
    """

    def __init__(
        self,
        plan: Any,
        client: Client,
        emitted: Emitted,
        static: frozenset[int],
        captured: Sequence[Buffer],
    ) -> None:
        self.plan = plan
        self._client = client
        self._forms = dict(emitted.inputs)
        self._static = [
            (index, position, form)
            for index, (position, form) in enumerate(emitted.inputs)
            if position in static
        ]
        self._staying: Sequence[tuple[int, int, Form]] = ()
        self.rearranged = False
        self._captured = captured
        # One object, replaced as a whole: other threads see buffers and addresses that fit.
        self.kept: Kept | None = None if self._static else self._keep({})

    def launch(self, values: Sequence[Any], call: Call) -> Started:
        """Start it on a graph's arguments; counts what crosses.

        Raises:
            PjrtError: the plugin failed.
            DataError: a tensor of another shape.
        """
        if callbacks.threads:
            callbacks.check()
        # Plugins may not have done with the memory of earlier launches when these ended.
        tidy()
        given = [value.direct if type(value) is Crossing else value for value in values]
        kept = self.kept or self._renew(values, call)
        found = self.plan.launch(given, kept.parts, None)
        self.rearranged = False
        if found is None or type(found) is int:
            found = self._prepare(found, values, given, call)
        call.crossed(call.at, found.shared, shared=True)
        if found.copied:
            call.crossed(call.at, found.copied, shared=False)
        started: Started = found
        return started

    def _prepare(self, found: Any, values: Sequence[Any], given: list[Any], call: Call) -> Any:
        """Launch values some of which do not go in as they are; `found` says which one.

        None means that a parameter is in other memory than it was.
        """
        tried: set[int] = set()
        copies: set[int] = set()
        renewals = 0
        while found is None or type(found) is int:
            if found is None:
                # Other threads may give parameters other memory meanwhile, but not without end.
                if renewals == _PATIENCE:
                    raise DataError("a parameter changes its memory while it is read")
                renewals += 1
                self._staying = ()
                self._renew(values, call)
            elif found in tried:
                raise DataError(f"argument {found} cannot be read: {type(given[found])}")
            else:
                self.rearranged = True
                tried.add(found)
                given[found], copied = self._fitting(found, values[found])
                if copied:
                    copies.add(found)
            assert self.kept is not None
            found = self.plan.launch(given, self.kept.parts, copies)
        return found

    def _fitting(self, position: int, value: Any) -> tuple[torch.Tensor, bool]:
        """A tensor that lies in memory as the program takes it, and whether it is a copy."""
        form, tensor = self._forms[position], tensor_of(value)
        arranged = form.arranged(tensor)
        copied = arranged.data_ptr() != tensor.data_ptr()
        return (arranged if form.order is None else arranged.permute(form.inverse)), copied

    def addresses(self, values: Sequence[Any]) -> dict[int, int]:
        """Where those arguments lie that might stay from call to call, though no parameters.

        A view keeps a tensor's memory, so large ones are not worth it.
        """
        static = {position for _, position, _ in self._static}
        return {
            position: values[position].data_ptr()
            for position, form in self._forms.items()
            if position not in static and form.type.nbytes <= _SMALL
        }

    def keep_too(self, staying: Collection[int], values: Sequence[Any]) -> None:
        """Keep these arguments too, by position, until one of them is in other memory."""
        self._staying = [
            (index, position, form)
            for index, (position, form) in enumerate(self._forms.items())
            if position in staying
        ]
        self._renew(values, Call(1))

    @property
    def staying_bytes(self) -> int:
        """Of the arguments that are kept and no parameters."""
        return sum(form.type.nbytes for _, _, form in self._staying)

    def _renew(self, values: Sequence[Any], call: Call) -> Kept:
        """Views of parameters as they are now; what cannot be viewed goes in with each call."""
        views: dict[int, tuple[Buffer, int]] = {}
        for index, position, form in (*self._static, *self._staying):
            # Detached, it stays in this memory whatever other threads give to the tensor.
            tensor = values[position].detach()
            address = tensor.data_ptr()
            buffer = None if self.kept is None else self.kept.find(index, address)
            if buffer is None:
                buffer = view(self._client, form, tensor)
                if buffer is not None:
                    call.crossed(call.at, form.type.nbytes, shared=True)
            if buffer is not None:
                views[index] = buffer, address
        self.kept = kept = self._keep(views)
        return kept

    def _keep(self, views: Mapping[int, tuple[Buffer, int]]) -> Kept:
        count = len(self._forms)
        found = [views.get(index, (None, 0)) for index in range(count)]
        buffers = [*(buffer for buffer, _ in found), *self._captured]
        return Kept(buffers, [address for _, address in found] + [0] * len(self._captured))


# -- in Python -------------------------------------------------------------------------------------


class General:
    """Programs that take and give buffers, on any plugin."""

    def __init__(
        self,
        executable: Executable,
        emitted: Emitted,
        static: frozenset[int],
        captured: Sequence[Buffer],
    ) -> None:
        self._executable = executable
        self._client = executable.client
        self._results = emitted.results
        # (index among the program's parameters, position among the graph's arguments, form)
        inputs = [(index, *item) for index, item in enumerate(emitted.inputs)]
        self._written = emitted.written
        kept = [item for item in inputs if item[1] in static]
        self._given = [item for item in inputs if item[1] not in static]
        self._kept = [(index, position) for index, position, _ in kept]
        self._static = StaticInputs(self._client, [form for *_, form in kept])
        self._template: list[Buffer | None] = [*(None for _ in inputs), *captured]

    def launch(self, values: Sequence[Any], call: Call) -> Started:
        """Start it on a graph's arguments; counts what crosses."""
        buffers, done = self._executable.submit(self._buffers(values, call))
        return Submitted([Held(*item) for item in zip(buffers, self._results, strict=True)], done)

    def _buffers(self, given: Sequence[Any], call: Call) -> list[Any]:
        buffers = self._template.copy()
        if self._kept:
            tensors = [given[position] for _, position in self._kept]
            static = self._static.buffers(tensors, call)
            for (index, _), buffer in zip(self._kept, static, strict=True):
                buffers[index] = buffer
        for index, position, form in self._given:
            writable = position in self._written
            buffers[index] = self._buffer(given[position], form, call, writable=writable)
        return buffers

    def _buffer(self, value: Any, form: Form, call: Call, *, writable: bool) -> Buffer:
        if type(value) is Crossing:
            direct = value.direct
            if type(direct) is Held and direct.result.form == form:
                return direct.buffer
            value = value.tensor()
        buffer, _ = put(self._client, form, value, call, writable=writable)
        return buffer


class Held:
    """A result as a buffer."""

    __slots__ = ("buffer", "result")

    def __init__(self, buffer: Buffer, result: Result) -> None:
        self.buffer = buffer
        self.result = result

    def tensor(self) -> torch.Tensor:
        """A tensor over the buffer's memory; waits for the values."""
        return self.result.tensor(self.buffer)
