"""Programs of operators that are called on resident tensors: traced, compiled and kept.

A call is traced on tensors without memory into a functional graph, in which what it writes into a
storage is a new array for that storage; the graph is compiled as one of torch.compile is. Numbers
that change become arguments when a program was made for one of their values before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import fx

from pjrt_bridge.mixed.execution import CallRecord, DeferredValue
from pjrt_bridge.mixed.launchers import BufferOutput
from pjrt_bridge.mixed.records import GraphRecord
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind.graphs import PlainGraph
from pjrt_bridge.torch_interop.compat import OpOverload, third_party_device
from pjrt_bridge.torch_interop.compat.symbolic_numbers import SymbolicNumbers
from pjrt_bridge.torch_interop.compiler import Compiler
from pjrt_bridge.torch_interop.device import shortcuts, transfer
from pjrt_bridge.torch_interop.device.calls import (
    Call,
    OperatorSchema,
    argument,
    form_of,
    tensors_in,
)
from pjrt_bridge.torch_interop.device.chosen import Mode, chosen, eager_mode, of_client
from pjrt_bridge.torch_interop.device.merging import Recordable
from pjrt_bridge.torch_interop.device.other_sizes import Resizes, called
from pjrt_bridge.torch_interop.device.recent import Recent
from pjrt_bridge.torch_interop.device.recording import recorder
from pjrt_bridge.torch_interop.device.resident_contents import ResidentContents
from pjrt_bridge.torch_interop.device.storage import (
    Contents,
    contents_of,
    resident_tensor,
)
from pjrt_bridge.torch_interop.device.templates import built, flattened, with_tensors
from pjrt_bridge.torch_interop.ledger import EAGER
from pjrt_bridge.torch_interop.nodes import is_mutation
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.passes.pipeline import Rewritten
from pjrt_bridge.torch_interop.placement.refusals import refused

_VARIANTS = 16
"""Programs for values of numbers that cannot become arguments; further values run in PyTorch."""

_INTEGERS = 4
"""Programs for values of integers, which are constants of a user's code more often than floats,
before they become arguments."""

_DIVIDING = ("div", "floor_divide", "fmod", "remainder", "true_divide")
"""Operators that divide, by the beginnings of their names."""


class NotTraceable(Exception):
    """A call that has no program, with the reason; None where everybody expects that."""


@dataclass
class CallProgram:
    """What serves the calls of a key.

    Attributes:
        name: of the operator.
        compiler: of the graph.
        module: the graph.
        record: of the graph.
        steps: what leads from a call to a call of it.
        layout: for each result of the operator the index of an output, a list of them, or None;
            results that are arguments are not among them.
        given: how many arrays a call gives.
        numbers: how many numbers a call has.
        lifted: numbers are arguments.
        conditions: whether it serves certain numbers; None where it serves all.
        index: of the device.
        written: positions of the arguments that it writes into.
        mode: how operators run.
        form: of the operator.
        has_run: it ran once.
    """

    name: str
    compiler: Compiler
    module: fx.GraphModule
    record: GraphRecord
    steps: tuple[Rewritten, ...]
    layout: tuple[Any, ...]
    given: int
    numbers: int
    lifted: bool
    index: int
    written: tuple[int, ...]
    mode: Mode
    form: OperatorSchema
    conditions: Callable[[Sequence[float]], bool] | None = None
    has_run: bool = False

    def serves(self, numbers: Sequence[float]) -> bool:
        """Whether it computes what a call with these numbers asks for."""
        return self.conditions is None or self.conditions(numbers)

    @cached_property
    def shortcut(self) -> Any:
        """The way of further calls through the compiled module; None where there is none."""
        if self.mode != "async":
            return None
        added = shortcuts.CallNumbers.of(
            self.steps, self.given, lifted=self.lifted, conditions=self.conditions
        )
        if added is None:
            return None
        return shortcuts.shortcut(
            self.graph, self.form, self.layout, self.index, added, self.numbers
        )

    @cached_property
    def graph(self) -> PlainGraph:
        """The compiled graph."""
        return self._compiled(self.record, divides=False)

    @cached_property
    def divided(self) -> PlainGraph:
        """The graph, compiled for arguments that are divided over a mesh."""
        record = GraphRecord(self.record.kind, self.record.name, self.record.plugin)
        return self._compiled(record, divides=True)

    def _compiled(self, record: GraphRecord, *, divides: bool) -> PlainGraph:
        compile = self.compiler.compile_rewritten
        with _compiling_alone():
            return compile(self.module, record, self.index, divides=divides)

    @cached_property
    def recordable(self) -> Recordable | None:
        """The graph as a part of a larger one; None where it has to run by itself.

        What PyTorch runs is not recorded, so that it raises in the call what it refuses.
        """
        if self.mode != "fused" or not self.compiler.lowers(self.module):
            return None
        return Recordable.of(self.name, self.module)

    def run(self, given: Sequence[Contents | torch.Tensor], numbers: Sequence[float]) -> list[Any]:
        """The outputs: resident tensors, and what is none."""
        divides = any(isinstance(item, Contents) and item.is_divided for item in given)
        self.has_run = self.has_run or not divides
        values: list[Any] = [
            ResidentContents(item) if isinstance(item, Contents) else item for item in given
        ]
        residents = list(values)
        if self.lifted:
            values.extend(numbers)

        def start(arguments: list[Any]) -> Sequence[Any]:
            graph = self.divided if divides else self.graph
            call = CallRecord(len(graph.record.segments))
            outputs = graph.start(list(arguments), call)
            if any(isinstance(item, torch.Tensor) for item in arguments):
                call.finish()
            return [self._result(item) for item in outputs]

        run: Callable[[list[Any]], Sequence[Any]] = start
        part = self.recordable
        if part is not None and not divides:
            run = partial(recorder(self.index).record, part)
        for step in reversed(self.steps):
            if step.steps:
                run = _before(step, run)
        outputs = run(values)
        for value in (residents[place] for place in self.written):
            # PyTorch computed it, in a copy.
            if value.host is not None and not value.replaced:
                buffer = transfer.put(value.host, self.index)
                value.replace(buffer, ValueSpec.row_major(buffer.type))
        if self.mode == "sync":
            for item in outputs:
                if isinstance(item, torch.Tensor):
                    contents_of(item).buffer.block_until_ready()
        return list(outputs)

    def _result(self, value: Any) -> Any:
        if isinstance(value, DeferredValue):
            value = value.direct
        if isinstance(value, BufferOutput):
            return resident_tensor(value.buffer, value.spec, self.index)
        if isinstance(value, ResidentContents):
            # The graph gives an argument as it is; buffers are never written into.
            elements = value.contents.elements
            return resident_tensor(elements, ValueSpec.row_major(elements.type), self.index)
        if isinstance(value, torch.Tensor):
            return transfer.to_device(value, self.index)
        return value


def _before(
    step: Rewritten, run: Callable[[list[Any]], Sequence[Any]]
) -> Callable[[list[Any]], Sequence[Any]]:
    return lambda arguments: step.call(run, arguments)


class Family:
    """The programs of one key: for values of numbers, and one for all of them.

    Attributes:
        is_traceable: there may be programs.
        reason: why there are none; None where everybody expects that.
    """

    def __init__(self) -> None:
        self._exact: dict[tuple[str, ...], CallProgram] = {}
        self._resizes: dict[tuple[str, ...], Resizes] = {}
        self._lifted: CallProgram | None = None
        self._cannot_lift = False
        self.is_traceable = True
        self.reason: str | None = None

    def find(self, call: Call) -> CallProgram | Resizes | None:
        """A program for a call, or what to resize before; None where PyTorch has to run it."""
        # Zeros of either sign are equal, and NaN is not equal to itself.
        key = tuple(map(repr, call.numbers))
        found = self._exact.get(key) or self._resizes.get(key)
        if found is None and self._lifted is not None and self._lifted.serves(call.numbers):
            return self._lifted
        if found is None and self.is_traceable:
            found = self._make(call, key)
        return found

    def _make(self, call: Call, key: tuple[str, ...]) -> CallProgram | Resizes | None:
        constants = 1 if any(type(item) is float for item in call.numbers) else _INTEGERS
        with _compiling_alone():
            if len(self._exact) >= constants and self._lifted is None and not self._cannot_lift:
                with suppress(NotTraceable, Resizes):
                    lifted = traced(call, lifted=True)
                    if lifted.compiler.lowers(lifted.module):
                        self._lifted = lifted
                        return lifted
                self._cannot_lift = True
            if len(self._exact) >= _VARIANTS:
                return None
            try:
                found = self._exact[key] = traced(call, lifted=False)
            except NotTraceable as error:
                self.is_traceable = False
                self.reason = error.args[0]
                return None
            except Resizes as error:
                # Its traceback holds tensors.
                made = self._resizes[key] = Resizes(error.forms)
                return made
            return found


_families: Recent[Family] = Recent(shortcuts.forget)
_compiling = threading.RLock()


@contextmanager
def _compiling_alone() -> Iterator[None]:
    """One thread compiles at a time, and nothing that surrounds the call takes part.

    Operators are called where torch traces, and where it runs kernels for what it traces.
    """
    with _compiling, compat.untraced(), third_party_device.seen_by_python():
        yield


def find_family(call: Call) -> Family | None:
    """The programs of calls like this one; None for the first of them."""
    return _families.find(call.key)


def new_family(call: Call) -> Family:
    """A place for the programs of calls like this one."""
    return _families.add(call.key, Family())


@of_client
def forget() -> None:
    """Drop all programs."""
    shortcuts.forget()
    _families.clear()


# -- making one ------------------------------------------------------------------------------------


def traced(call: Call, *, lifted: bool) -> CallProgram:
    """A program for calls like one.

    Args:
        call: an example.
        lifted: its numbers become arguments.

    Raises:
        NotTraceable: it depends on data, or on the numbers that were to become arguments, or torch
            cannot trace it.
        Exception: what torch raises for arguments of these shapes and types.
    """
    client, _ = chosen(call.index)
    args, kwargs = call.template()
    # What tracing leaves behind may refer to these for a while, and must not keep tensors.
    op, constants = call.op, tuple(call.numbers)
    step = compat.traceable_step(op) or op
    layout: list[Any] = []
    with compat.real_tensors(), compat.fakes(symbolic=lifted) as mode:
        promises: list[Any] = [_promise(item) for item in call.given]
        symbolic = SymbolicNumbers(mode, call.numbers) if lifted else None
        if symbolic is not None:
            promises += symbolic.promises
        count = len(call.given)
        form = form_of(call.op)

        def run(*given: Any) -> list[Any]:
            numbers: Sequence[Any] = given[count:] if lifted else constants
            taken = with_tensors(op, built(args, given, numbers))
            named = built(kwargs, given, numbers)
            written = [
                item for place in form.written for item in tensors_in(argument(place, taken, named))
            ]
            found = called(step, op, (taken, named), written)
            layout[:], outputs = flattened(form, found)
            return outputs

        try:
            module = third_party_device.trace_call(
                run,
                promises,
                {
                    **compat.eager_decompositions(),
                    **compat.decompositions(refused=refused),
                    **compat.accelerator_decompositions(traced=False),
                },
            )
        except compat.DATA_DEPENDENT as error:
            raise NotTraceable(None) from error
        except Resizes:
            raise
        except Exception as error:
            # If it is a mistake of the user, PyTorch's operator raises its own error.
            raise NotTraceable(f"torch cannot trace it: {error}") from error
    if symbolic is not None and symbolic.are_constant:
        raise NotTraceable("what it computes depends on a number")
    name = call.op.__name__.replace(".", "_")
    record = GraphRecord("inference", f"eager_{name}", client.plugin.name)
    eager = eager_mode()
    compiler = Compiler(
        client,
        BackendOptions(placement="device", check_indices=eager == "sync" or "auto"),
        ledger=EAGER,
    )
    placeholders = module.graph.find_nodes(op="placeholder")
    written = tuple(
        placeholders.index(node.args[0]) for node in module.graph.nodes if is_mutation(node)
    )
    module, steps = compiler.rewrite_call(module, record.kind)
    if any(
        isinstance(compat.promise(node), torch.SymInt | torch.SymFloat) and node.users
        for node in module.graph.find_nodes(op="placeholder")
    ):
        raise NotTraceable("what it computes depends on a number")
    return CallProgram(
        str(call.op),
        compiler,
        module,
        record,
        steps,
        tuple(layout),
        count,
        len(constants),
        lifted,
        call.index,
        written,
        eager,
        form,
        None if symbolic is None else _conditions(call.op, symbolic),
    )


def _conditions(
    op: OpOverload, symbolic: SymbolicNumbers
) -> Callable[[Sequence[float]], bool] | None:
    found = symbolic.conditions()
    if not op.__name__.startswith(_DIVIDING):
        return found
    # Where integers are divided by zero, PyTorch raises.
    return lambda numbers: 0 not in numbers and (found is None or found(numbers))


def _promise(item: Contents | torch.Tensor) -> torch.Tensor:
    return torch.empty(item.shape, dtype=item.dtype, device="cpu")
