"""Segments of a captured function: on the device by the execution core, and in TensorFlow.

A device segment is exported for the shapes that come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from pjrt_bridge import timeline
from pjrt_bridge.errors import DEVICE_FAILURES, NotExportable, ProgramError, UnsupportedDtype
from pjrt_bridge.mixed.adapter import Bindings, Computed, Constant
from pjrt_bridge.mixed.execution import CallRecord, DeferredValue, Runner, tensor_of
from pjrt_bridge.mixed.launchers import launcher_of
from pjrt_bridge.mixed.records import SegmentRecord
from pjrt_bridge.mixed.renewal import compile_for
from pjrt_bridge.mixed.segment import DeviceSegment
from pjrt_bridge.mixed.variants import EAGER, VariantCache
from pjrt_bridge.runtime import Client, CompileOptions, Executable
from pjrt_bridge.runtime.dispatch.plans import BoundParameter
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.tf_interop import compat, dtypes
from pjrt_bridge.tf_interop.adapter import ADAPTER
from pjrt_bridge.tf_interop.capture import CapturedFunction
from pjrt_bridge.tf_interop.constants import ConstantInputs
from pjrt_bridge.tf_interop.emit import Emitted, emit, traced
from pjrt_bridge.tf_interop.split import Part
from pjrt_bridge.tf_interop.steps import steps_of
from pjrt_bridge.tf_interop.tensors import type_of

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

    def __init__(self, captured: CapturedFunction, part: Part) -> None:
        self._captured = captured
        self._part = part

    @cached_property
    def _run(self) -> Callable[[list[Any]], Sequence[Any]]:
        # Most segments that could run here never do.
        steps = steps_of(self._captured, self._part)
        if steps is not None:
            return steps
        with compat.eagerly():
            made = self._made = traced(self._captured, self._part, for_tensorflow=True)
        held = list(made.captured_inputs)
        count = len(self._part.outputs)
        return lambda inputs: compat.run(made.name, [*inputs, *held], compat.CALLED, count)

    def start(self, values: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs. An operation's exception passes through unchanged."""
        return self._run([tensor_of(values[place]) for place in self._part.places])


def bindings_of(
    executable: Executable, emitted: Emitted, outputs: int, takes: Sequence[int]
) -> Bindings:
    """The bindings of a part's program: its parameters, results and new values.

    Args:
        executable: compiled from `emitted.program`.
        emitted: what its parameters and results are.
        outputs: how many of its results are outputs of the part; the others are new values.
        takes: for each input of the program its position among the values of the segment.
    """
    signature, count = executable.signature, len(takes)
    updated = {at for at, _ in emitted.updates}
    return Bindings(
        parameters=[
            BoundParameter(index, ValueSpec.row_major(parameter.type))
            for index, parameter in enumerate(signature.parameters)
        ],
        results=[ValueSpec.row_major(result.type) for result in signature.results],
        outputs=[Computed(index) for index in range(outputs)],
        updates=[(Constant(emitted.held[at]), index) for at, index in emitted.updates],
        takes=takes,
        reads=_reader(emitted.held) if emitted.held else None,
        pinned=frozenset(count + at for at in range(len(emitted.held)) if at not in updated),
    )


def _reader(held: Sequence[Any]) -> Callable[[], list[Any]]:
    """Gives what a function holds as tensors: variables as they are in each call."""
    places = [at for at, item in enumerate(held) if compat.is_variable(item)]
    read = compat.reader([held[at] for at in places])
    if len(places) == len(held):
        return read

    def values() -> list[Any]:
        found = list(held)
        for at, value in zip(places, read(), strict=True):
            found[at] = value
        return found

    return values


class SizedSegment:
    """A part that runs on a device, compiled for the shapes and values that come.

    Args:
        captured: the function.
        part: of it.
        needs: what it takes to compile it.
        client: of the plugin.
        name: for messages and the plugin.
        record: told what compiling costs, and what fails.
        on_failure: told each failure; raises it where the host is forbidden.
        host_allowed: TensorFlow may compute what comes for the first time.
        tensor_float_32: see `function`.

    Attributes:
        part: see above.
        host: the same in TensorFlow.
        only: what it is compiled to before any call; None where shapes or values decide.
    """

    def __init__(
        self,
        captured: CapturedFunction,
        part: Part,
        needs: ConstantInputs,
        client: Client,
        name: str,
        record: SegmentRecord,
        on_failure: Callable[[SegmentRecord, Exception, str], None],
        *,
        host_allowed: bool,
        tensor_float_32: bool,
    ) -> None:
        self._captured = captured
        self.part = part
        self._client = client
        self._states_exact = not tensor_float_32 and not client.platform_spec.exact_products
        self._name = name
        self._record = record
        self._on_failure = on_failure
        self._wanted = [part.inputs.index(value) for value in needs.values]
        self._types = static_types(captured, part)
        held = [captured.captures[value] for value in part.held]
        # Variables that may have another shape in each call.
        loose = [item for item in held if compat.has_open_shape(item)]
        self._is_loose = bool(loose)
        self._loose_values = compat.reader(loose)
        self.host = HostSegment(captured, part)
        self.only: DeviceSegment | None = None
        self._variants: VariantCache[Runner] = VariantCache(
            self._uncompiled if host_allowed else None
        )

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
        self.only = self._compile(self._types, {})

    @property
    def variants(self) -> int:
        """For how many sets of shapes and values it is compiled."""
        return len(self._variants) if self.only is None else 1

    def start(self, values: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs, deferred; waits for nothing but updates of variables.

        Takes tensors, and what other segments have started.
        """
        if self.only is not None:
            return self.only.start(values, call)
        given = [values[place] for place in self.part.places]
        key = (
            *(
                compat.value_of(tensor_of(value)) if index in self._wanted else _type(value)
                for index, value in enumerate(given)
            ),
            *map(_type, self._loose_values()),
        )
        return self._variants.find(key, partial(self._variant, given))(values, call)

    # -- variants ----------------------------------------------------------------------------------

    def _uncompiled(self, values: list[Any], call: CallRecord) -> Sequence[Any]:
        found = NotExportable(f"it was compiled for {EAGER} others, and new ones keep coming")
        self._on_failure(self._record, found, "is compiled for shapes and values that come again")
        return self.host.start(values, call)

    def _variant(self, given: Sequence[Any], last: Hashable | None) -> Runner:
        try:
            types = [_type(value) for value in given]
            constants = {self.part.inputs[at]: tensor_of(given[at]).numpy() for at in self._wanted}
            return self._compile(types, constants).start
        except COMPILE_FAILURES as error:
            self._on_failure(self._record, error, "could not be compiled")
            return self.host.start

    def _compile(self, types: Sequence[TensorType], constants: Mapping[int, Any]) -> DeviceSegment:
        started = time.perf_counter()
        part = self.part
        with compat.eagerly(), timeline.span(f"emit {self._name}"):
            function = traced(self._captured, part, constants)
            inputs = [at for at, value in enumerate(part.inputs) if value not in constants]
            given = [types[at] for at in inputs]
            emitted = emit(function, given, len(part.outputs), exact=self._states_exact)
        executable = compile_for(self._client, emitted.program, CompileOptions())
        takes = [part.places[at] for at in inputs]
        bindings = bindings_of(executable, emitted, len(part.outputs), takes)
        made = DeviceSegment(
            launcher_of(executable, bindings, ADAPTER),
            bindings,
            ADAPTER,
            self.host.start,
            self._failed_in_a_call,
            shares=self._client.shares_host_memory,
        )
        self._record.compile_seconds += time.perf_counter() - started
        self._record.cached = executable.cached
        return made

    def _failed_in_a_call(self, error: Exception) -> None:
        self._on_failure(self._record, error, "failed on the device")


def _type(value: Any) -> TensorType:
    if isinstance(value, DeferredValue):
        return value.type
    return type_of(tensor_of(value), "a value that crosses to the device")


def static_types(captured: CapturedFunction, part: Part) -> list[TensorType] | None:
    """Types of a part's inputs; None where TensorFlow does not know a shape before a call."""
    found = []
    for value in part.inputs:
        tensor = captured.values[value]
        if not tensor.shape.is_fully_defined():
            return None
        what = f"the value {tensor.name!r} that crosses to the device"
        found.append(TensorType(tuple(tensor.shape), dtypes.of(tensor.dtype, what)))
    return found
