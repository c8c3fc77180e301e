"""Segments of a captured function, on the device and in TensorFlow.

Values cross as they are: a device segment hands on the plugin's outputs, a host segment eager
tensors, and each takes what it gets as its own kind, over the same memory. A device segment is
exported for the shapes that come. What the device fails to do in a call, TensorFlow does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from pjrt_bridge import timeline
from pjrt_bridge.errors import (
    DEVICE_FAILURES,
    NotExportable,
    PjrtBridgeError,
    ProgramError,
    UnsupportedDtype,
)
from pjrt_bridge.mixed.launch import PATIENCE, Crossing, Launch, Path, tensor_of
from pjrt_bridge.mixed.program import Call
from pjrt_bridge.mixed.records import SegmentRecord
from pjrt_bridge.runtime import Client, CompileOptions
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.tf_interop import compat, dtypes
from pjrt_bridge.tf_interop.capture import Captured
from pjrt_bridge.tf_interop.constants import Needs
from pjrt_bridge.tf_interop.emit import Emitted, emit, traced
from pjrt_bridge.tf_interop.paths import path_of
from pjrt_bridge.tf_interop.split import Part
from pjrt_bridge.tf_interop.steps import steps_of
from pjrt_bridge.tf_interop.tensors import total_bytes, type_of

VARIANTS = 32
"""Sets of shapes and values for which a segment is compiled; the host computes others."""

COMPILE_FAILURES = (
    *DEVICE_FAILURES,
    NotExportable,
    ProgramError,
    UnsupportedDtype,
)


class HostSegment:
    """A part that runs in TensorFlow: as a function, or operation by operation where they are few.

    To call a function costs TensorFlow about as much as six operations.
    """

    def __init__(self, captured: Captured, part: Part) -> None:
        self._captured = captured
        self._part = part

    @cached_property
    def _run(self) -> Callable[[list[Any]], Sequence[Any]]:
        # Most segments that could run here never do.
        steps = steps_of(self._captured, self._part)
        if steps is not None:
            return steps
        with compat.eagerly():
            made = self._made = traced(self._captured, self._part)
        held = list(made.captured_inputs)
        count = len(self._part.outputs)
        return lambda inputs: compat.run(made.name, [*inputs, *held], compat.CALLED, count)

    def start(self, values: list[Any], call: Call) -> Sequence[Any]:
        """The outputs. An operation's exception passes through unchanged."""
        return self._run([tensor_of(values[place]) for place in self._part.places])


class Variant:
    """A device segment, compiled for certain shapes and values; its launches know it.

    Attributes:
        path: starts the program.
        results: types of the outputs.
        updates: handles of variables, each with the index of its new value among all results.
        result_bytes: of all results.
        shares: results are read where they lie.
    """

    def __init__(self, segment: DeviceSegment, path: Path, emitted: Emitted) -> None:
        types = [result.type for result in emitted.program.signature.results]
        self._segment = segment
        self.path = path
        self.results = types[: len(segment.part.outputs)]
        self.updates = [(emitted.held[at], index) for at, index in emitted.updates]
        self.result_bytes = total_bytes(types)
        self.shares = segment.shares

    def count(self, index: int, at: int, call: Call) -> None:
        """Count a result that crosses to the host."""
        call.crossed(at, self.results[index].nbytes, shared=self.shares)

    def succeeded(self) -> None:
        """Note a launch that went well."""
        self._segment.succeeded()

    def recover(self, values: list[Any], call: Call, error: PjrtBridgeError) -> Mapping[int, Any]:
        """The outputs by index, from TensorFlow, after the device failed."""
        return dict(enumerate(self._segment.recover(values, call, error)))


class DeviceSegment:
    """A part that runs on a device.

    Args:
        captured: the function.
        part: of it.
        needs: what it takes to compile it.
        client: of the plugin.
        name: for messages and the plugin.
        record: told what compiling costs, and what fails.
        on_failure: told each failure; raises it where the host is forbidden.

    Attributes:
        part: see above.
        shares: results are read where they lie.
        host: the same in TensorFlow.
    """

    def __init__(
        self,
        captured: Captured,
        part: Part,
        needs: Needs,
        client: Client,
        name: str,
        record: SegmentRecord,
        on_failure: Callable[[SegmentRecord, Exception, str], None],
    ) -> None:
        self._captured = captured
        self.part = part
        self._client = client
        self._name = name
        self._record = record
        self._on_failure = on_failure
        self._failures = 0
        self._variants: dict[Any, Variant | None] = {}
        self._compiling = threading.Lock()
        self._wanted = [part.inputs.index(value) for value in needs.values]
        self._types = static_types(captured, part)
        held = [captured.captures[value] for value in part.held]
        # Variables that may have another shape in each call.
        loose = [item for item in held if compat.has_open_shape(item)]
        self._is_loose = bool(loose)
        self._loose_values = compat.reader(loose)
        self.shares = client.shares_host_memory
        self.host = HostSegment(captured, part)

    @property
    def is_static(self) -> bool:
        """Whether it can be compiled before a call."""
        return self._types is not None and not self._wanted and not self._is_loose

    def compile(self) -> None:
        """Compile it for the shapes that TensorFlow knows.

        Raises:
            COMPILE_FAILURES: it cannot be compiled.
        """
        assert self._types is not None
        self._variants[()] = self._compile(self._types, {})

    @property
    def variants(self) -> int:
        """For how many sets of shapes and values it is compiled."""
        return sum(variant is not None for variant in self._variants.values())

    @property
    def only(self) -> Variant | None:
        """What it is compiled to before any call; None where shapes or values decide."""
        return self._variants.get(()) if self.is_static else None

    def start(self, values: list[Any], call: Call) -> Sequence[Any]:
        """The outputs, on their way; waits for nothing but updates of variables.

        Takes tensors, and what other segments have started.
        """
        if self._failures >= PATIENCE:
            return self.host.start(values, call)
        given = [values[place] for place in self.part.places]
        variant = self._variant(given)
        if variant is None:
            return self.host.start(values, call)
        try:
            started = variant.path.launch(given, call)
        except DEVICE_FAILURES as error:
            return self.recover(values, call, error)
        if variant.updates:
            try:
                started.finish()
                tensors = started.tensors()
            except DEVICE_FAILURES as error:
                return self.recover(values, call, error)
            return self.settle(variant, tensors, call)
        launch = Launch(variant, values, started, call)
        call.began(launch)
        return [
            Crossing(launch, index, output, type)
            for index, (output, type) in enumerate(
                zip(started.outputs, variant.results, strict=True)
            )
        ]

    def settle(self, variant: Variant, tensors: list[Any], call: Call) -> list[Any]:
        """Give variables their new values; the outputs."""
        for handle, index in variant.updates:
            compat.assign(handle, tensors[index])
        self.succeeded()
        call.crossed(call.at, variant.result_bytes, shared=self.shares)
        return tensors[: len(variant.results)]

    def succeeded(self) -> None:
        """Note a launch that went well."""
        self._failures = 0

    def recover(self, values: list[Any], call: Call, error: Exception) -> Sequence[Any]:
        """The outputs, from TensorFlow, after the device failed.

        What TensorFlow refuses too is no fault of the device.
        """
        self._on_failure(self._record, error, "failed on the device")
        outputs = self.host.start(values, call)
        self._failures += 1
        return outputs

    # -- variants ----------------------------------------------------------------------------------

    def _variant(self, given: Sequence[Any]) -> Variant | None:
        """What is compiled for the values that come; None where the host has to compute."""
        if self.is_static:
            key: Any = ()
        else:
            key = (
                *(
                    compat.value_of(tensor_of(value)) if index in self._wanted else _type(value)
                    for index, value in enumerate(given)
                ),
                *map(_type, self._loose_values()),
            )
        try:
            return self._variants[key]
        except KeyError:
            pass
        with self._compiling:
            if key not in self._variants:
                self._variants[key] = self._new_variant(given)
            return self._variants[key]

    def _new_variant(self, given: Sequence[Any]) -> Variant | None:
        if len(self._variants) >= VARIANTS:
            reason = NotExportable(
                f"it was compiled for {VARIANTS} sets of shapes and values, and others keep coming"
            )
            self._on_failure(self._record, reason, "is not compiled again")
            return None
        try:
            types = [_type(value) for value in given]
            constants = {self.part.inputs[at]: tensor_of(given[at]).numpy() for at in self._wanted}
            return self._compile(types, constants)
        except COMPILE_FAILURES as error:
            self._on_failure(self._record, error, "could not be compiled")
            return None

    def _compile(self, types: Sequence[TensorType], constants: Mapping[int, Any]) -> Variant:
        started = time.perf_counter()
        part = self.part
        with compat.eagerly(), timeline.span(f"emit {self._name}"):
            function = traced(self._captured, part, constants)
            places = [at for at, value in enumerate(part.inputs) if value not in constants]
            emitted = emit(function, [types[at] for at in places], len(part.outputs))
        executable = self._client.compile(emitted.program, options=CompileOptions())
        path = path_of(executable, emitted, places)
        self._record.compile_seconds += time.perf_counter() - started
        self._record.cached = executable.cached
        return Variant(self, path, emitted)


def _type(value: Any) -> TensorType:
    if isinstance(value, Crossing) and value.form is not None:
        found: TensorType = value.form
        return found
    return type_of(tensor_of(value), "a value that crosses to the device")


def static_types(captured: Captured, part: Part) -> list[TensorType] | None:
    """Types of a part's inputs; None where TensorFlow does not know a shape before a call."""
    found = []
    for value in part.inputs:
        tensor = captured.values[value]
        if not tensor.shape.is_fully_defined():
            return None
        what = f"the value {tensor.name!r} that crosses to the device"
        found.append(TensorType(tuple(tensor.shape), dtypes.of(tensor.dtype, what)))
    return found
