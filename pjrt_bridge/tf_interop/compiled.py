"""A concrete function, compiled: placed, divided, exported, and run in parts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pjrt_bridge import registry
from pjrt_bridge.errors import DEVICE_FAILURES, FallbackForbidden
from pjrt_bridge.mixed.execution import Runner, tensor_of
from pjrt_bridge.mixed.launchers import DispatchLauncher
from pjrt_bridge.mixed.program import MixedProgram
from pjrt_bridge.mixed.records import GraphRecord, SegmentRecord, begin, end
from pjrt_bridge.report.fallback_reason import FallbackReason, UnintendedFallback
from pjrt_bridge.runtime import Client
from pjrt_bridge.tf_interop import compat, xla_traces
from pjrt_bridge.tf_interop.capture import CapturedFunction, capture
from pjrt_bridge.tf_interop.constants import ConstantInputs, needs
from pjrt_bridge.tf_interop.fast_path import FunctionPath
from pjrt_bridge.tf_interop.ledger import LEDGER
from pjrt_bridge.tf_interop.placement import Placement
from pjrt_bridge.tf_interop.segments import COMPILE_FAILURES, HostSegment, SizedSegment
from pjrt_bridge.tf_interop.split import Part, Split, operators, split

_ATTEMPTS = 8
"""Divisions of a function until what cannot be compiled runs on the host as a whole segment."""
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")


@dataclass(frozen=True)
class Settings:
    """The user's settings for a function.

    Attributes:
        client: of the plugin that runs it.
        fallback: what happens to operations that the plugin cannot run.
        placement: whether TensorFlow keeps what it is faster at.
        tensor_float_32: see `function`.
    """

    client: Client
    fallback: Literal["host", "error"]
    placement: Literal["auto", "device"] = "auto"
    tensor_float_32: bool = False

    def slower(self) -> Mapping[str, int]:
        """From how many elements on operations are faster in TensorFlow."""
        # Where the host is forbidden everything goes to the device.
        weighed = self.placement == "auto" and self.fallback == "host"
        return registry.slower(self.client.plugin) if weighed else {}


class CompiledFunction:
    """A concrete function as segments.

    Args:
        function: TensorFlow's concrete function.
        settings: the user's.
        for_xla: gives the same function as XLA needs it (`xla_traces`).

    Attributes:
        function: see above, or what `for_xla` gave.
        held: what it holds: variables, tables, constants.
        pack: gives flat results their structure.
        record: what is known of it.

    Raises:
        FallbackForbidden: it cannot run on the device as a whole, and the host is forbidden.
        NotExportable: TensorFlow finds inputs of it anew in each call.
    """

    def __init__(
        self, function: Any, settings: Settings, for_xla: Callable[[], Any] | None = None
    ) -> None:
        self._settings = settings
        self._plugin = settings.client.plugin.name
        self.function = function
        self._for_xla = for_xla
        self._captured = capture(function)
        self.record = GraphRecord("function", self._captured.name, self._plugin)
        self._failed: dict[str, FallbackReason] = {}
        self._slower = settings.slower()
        self._whole: SizedSegment | None = None
        self._devices: list[SizedSegment] = []
        self._program, self._outputs = self._divide()
        self._held = list(self._captured.captures.values())
        self.held = self.function.captured_inputs
        self.pack = compat.packer(self.function)
        LEDGER.add(self.record)

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        """The flat results for flat arguments."""
        call = begin(self.record, None)
        found = self._program.run([*arguments, *self._held], call)
        values = [tensor_of(value) for value in found]
        end(self.record, call)
        if self._whole is not None and self.fast_path is not None:
            self.fast_path.went_well(call)
        return [values[index] for index in self._outputs]

    @property
    def variants(self) -> int:
        """For how many sets of shapes and values its device segments are compiled."""
        return sum(segment.variants for segment in self._devices)

    @cached_property
    def fast_path(self) -> FunctionPath | None:
        """The fast path, for calls with the flat tensors; None where there is none."""
        segment = None if self._whole is None else self._whole.only
        if segment is None or not isinstance(segment.launcher, DispatchLauncher):
            return None
        assert self._whole is not None
        part, arguments = self._whole.part, self._captured.arguments
        if len(part.inputs) != len(arguments):
            # Of an argument that nothing reads, the fast path would not see another shape.
            return None
        takes = [arguments.index(value) for value in part.inputs]
        order = [part.outputs.index(value) for value in self._captured.outputs]
        made = FunctionPath(segment, takes, order, self.pack)
        self.record.follow(made.last)
        return made

    # -- compiling ---------------------------------------------------------------------------------

    def _divide(self) -> tuple[MixedProgram, Sequence[int]]:
        """Divide it so that all that can be known before a call is compiled."""
        for attempt in range(_ATTEMPTS):
            started = time.perf_counter()
            placed = self._place(self._captured)
            if xla_traces.could_help(placed.values()) and self._trace_for_xla(len(placed)):
                continue
            parts = split(self._captured, placed)
            wanted = {
                index: needs(self._captured, part)
                for index, part in enumerate(parts.parts)
                if part.on_device
            }
            found = [item for need in wanted.values() for item in need.fallback_reasons.items()]
            self.record.lowering_seconds += time.perf_counter() - started
            if found:
                if self._trace_for_xla(len(found)):
                    continue
                for index, reason in found:
                    self._failed[self._captured.operations[index].name] = reason
                continue
            if self._settings.fallback == "error":
                self._tell_or_refuse("the function", placed.values())
            runners = self._compile(parts, wanted, last=attempt == _ATTEMPTS - 1)
            if runners is not None:
                # Only now all of them are known.
                self._tell_or_refuse("the function", placed.values())
                break
        else:
            raise AssertionError("the last attempt leaves whole segments to the host")
        distinct = list(dict.fromkeys(self._captured.outputs))
        program = MixedProgram(parts.graph, parts.segments, runners)
        return program, [distinct.index(value) for value in self._captured.outputs]

    def _place(self, captured: CapturedFunction) -> dict[int, FallbackReason]:
        return Placement(captured, self._failed, self._slower).fallback_reasons()

    def _trace_for_xla(self, on_host: int) -> bool:
        """Take the trace for XLA where it leaves fewer operations than these to the host."""
        retrace, self._for_xla = self._for_xla, None
        if retrace is None or not xla_traces.has_loops(self._captured):
            return False
        try:
            function = retrace()
            captured = capture(function)
        # The user's function need not be one that can be traced twice.
        except Exception:
            return False
        if not xla_traces.runs_in_tensorflow(captured) or len(self._place(captured)) >= on_host:
            return False
        self.function, self._captured = function, captured
        self._failed.clear()
        return True

    def _compile(
        self, parts: Split, wanted: Mapping[int, ConstantInputs], *, last: bool
    ) -> list[Runner] | None:
        """What runs each part; None where an operation turned out to have to be on the host.

        Args:
            parts: of the function.
            wanted: what it takes to compile those on the device, by index.
            last: no operation is looked for any more.
        """
        self.record.segments = [_record(self._captured, part) for part in parts.parts]
        runners: list[Runner] = []
        self._whole, self._devices = None, []
        for index, part in enumerate(parts.parts):
            segment = self.record.segments[index]
            if not part.on_device:
                runners.append(HostSegment(self._captured, part).start)
                continue
            device = SizedSegment(
                self._captured,
                part,
                wanted[index],
                self._settings.client,
                f"{self.record.name}_{index}",
                segment,
                self._failure,
                host_allowed=self._settings.fallback == "host",
                tensor_float_32=self._settings.tensor_float_32,
            )
            try:
                if device.is_static:
                    device.compile()
            except COMPILE_FAILURES as error:
                if not last and self._trace_for_xla(len(part.operations)):
                    return None
                if not last and self._blame(part, error):
                    return None
                segment.placement = "host"
                self._failure(segment, error, "could not be compiled")
                runners.append(device.host.start)
            else:
                runners.append(device.start)
                self._devices.append(device)
                if len(parts.parts) == 1 and not self._unmade():
                    self._whole = device
        return runners

    def _unmade(self) -> bool:
        """Whether results are arguments, or what the function holds."""
        made = {value for item in self._captured.operations for value in item.outputs}
        return not made.issuperset(self._captured.outputs)

    def _blame(self, part: Part, error: Exception) -> bool:
        """Find the operation that a failed export names, and keep it on the host."""
        names = set(_NODE.findall(str(error)))
        for index in part.operations:
            operation = self._captured.operations[index]
            if operation.name in names and operation.name not in self._failed:
                reason = f"{_short(error)} (node {operation.name})"
                self._failed[operation.name] = FallbackReason(
                    operation.type, reason, "refused", operation.source
                )
                return True
        return False

    # -- what the host has to do -------------------------------------------------------------------

    def _failure(self, segment: SegmentRecord, error: Exception, how: str) -> None:
        if self._settings.fallback == "error" and isinstance(error, DEVICE_FAILURES):
            raise error
        segment.failed(f"it {how}: {_short(error)}")
        self._tell_or_refuse("a segment of the function", segment.fallback_reasons[-1:])

    def _tell_or_refuse(self, what: str, reasons: Iterable[FallbackReason]) -> None:
        """Raise where the host is forbidden, else warn once of each unintended fallback."""
        found = UnintendedFallback.among(reasons)
        if found is None:
            return
        name = self._captured.name
        if self._settings.fallback == "error":
            raise FallbackForbidden(
                f"function {name!r} cannot run on plugin {self._plugin!r}: {found.shown}. Change "
                'the function there, or allow the host with fallback="host"'
            )
        LEDGER.warn_once(
            f"plugin {self._plugin!r} does not run {found.affected(what, 'operation')} {name!r}, "
            f"TensorFlow does: {found.shown}"
        )


def _record(captured: CapturedFunction, part: Part) -> SegmentRecord:
    return SegmentRecord(
        placement="device" if part.on_device else "host",
        operators=operators(captured, part.operations),
        nodes=tuple(
            captured.operations[index].name
            for index in part.operations
            if captured.operations[index].type != "Const"
        ),
        fallback_reasons=list(part.fallback_reasons),
        reads=part.reads,
        takes_arguments=part.takes_arguments,
        gives_results=part.gives_results,
    )


_LONGEST = 300


def _short(error: Exception) -> str:
    """The first sentences of an error of TensorFlow, which go on with stacks and functions."""
    text = " ".join(str(getattr(error, "message", None) or error).split())
    text = text.split("Stack trace for op definition")[0].strip()
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
