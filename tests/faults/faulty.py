"""A plugin's API table with faults: one facility for all tests of what the bridge does with them.

`Faulty` stands before the table of a real plugin. Until it is told otherwise every call passes
through; `strike` makes one function fail, come late, or give nothing, from then on. What is wrong
with a table from the start, missing slots or unknown extensions, is said when it is made.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pjrt_bridge.abi.api import VOID_FUNCTIONS, Api
from pjrt_bridge.abi.functions import FUNCTIONS, SLOTS_0_81
from pjrt_bridge.abi.implement import TableFunction
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.errors import ErrorCode, PjrtError
from tests.faults.ledger import MAKES, Ledger, pointers_at
from tests.faults.replaced import Replaced, Replacement

CODES = {
    "error": ErrorCode.INTERNAL,
    "error later": ErrorCode.INTERNAL,
    "unimplemented": ErrorCode.UNIMPLEMENTED,
    "exhausted": ErrorCode.RESOURCE_EXHAUSTED,
    "consumed": ErrorCode.INTERNAL,
    "failing event": ErrorCode.DATA_LOSS,
}
"""Kinds of faults that end in an error, with its code."""

LATE = 0.01
"""Seconds by which something is late."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a function.

    Attributes:
        function: its name, without `PJRT_`.
        kind: `"error"`, `"unimplemented"`, `"exhausted"`: it returns an error of that kind;
            `"error later"`: at its second call; `"late"`: it takes its time; `"nothing"`: it
            succeeds and gives no outputs; `"failing event"`, `"late event"`: the events that it
            gives fail, or take their time; `"consumed"`, of an execution: it fails after the
            plugin took the donated arguments; `"partial"`, of an execution: the last result of the
            last device is missing; `"missing"`: its slot is NULL.
    """

    function: str
    kind: str


class Faulty:
    """A table over the one of a real plugin.

    Args:
        base: address of the real one.
        without: functions whose slots are NULL.
        slots: how many functions the table has.
        version: (major, minor) that it states.
        functions: further ones, that the real plugin does not have.
        unknown_extensions: links of types that nobody knows, put before the chain of the real one.

    Attributes:
        address: of the table.
        calls: how often each function was called since the last `strike`.
        struck: how often the fault struck since then.
        ledger: the objects behind the table.
    """

    def __init__(
        self,
        base: int,
        *,
        without: Sequence[str] = (),
        slots: int = SLOTS_0_81,
        version: tuple[int, int] = (0, 81),
        functions: dict[str, TableFunction] | None = None,
        unknown_extensions: int = 0,
    ) -> None:
        self.ledger = Ledger()
        self.calls: Counter[str] = Counter()
        self.struck = 0
        self._fault: Fault | None = None
        self._failing: set[int] = set()
        self._late: dict[int, float] = {}
        self._refused: list[tuple[str, Any]] = []
        self._results: dict[int, int] = {}
        self._real = Api(base, plugin="real")
        self._own = functions or {}
        names = [name for name in FUNCTIONS if FUNCTIONS[name] and self._real.has(name)]
        self._table = Replaced(
            base,
            {name: self._wrapped(name) for name in (*names, *self._own)},
            slots=slots,
            version=version,
            extension_start=self._extended(self._real.extension_start, unknown_extensions),
        )
        self.address = self._table.address
        self._taken = {name: self._table.put(name, None) for name in without}

    @contextmanager
    def strike(self, fault: Fault | None) -> Iterator[None]:
        """Let a fault strike during a `with` block, and count calls from now on."""
        self.calls.clear()
        self.struck = 0
        self._fault = fault
        try:
            yield
        finally:
            self._fault = None

    @contextmanager
    def spared(self) -> Iterator[None]:
        """Let the fault not strike during a `with` block, and count no calls."""
        fault, calls = self._fault, self.calls
        self._fault, self.calls = None, Counter()
        try:
            yield
        finally:
            self._fault, self.calls = fault, calls

    def fill(self, function: str) -> None:
        """Put a function that was left out into its slot."""
        self._table.put(function, self._taken.pop(function))

    def take_back(self) -> None:
        """End the objects that a fault kept from being destroyed.

        Those of a client that has ended since stay: XLA on GPUs follows their pointers to it.
        """
        while self._refused:
            function, pointer = self._refused.pop()
            struct = FUNCTIONS[function]
            assert struct is not None
            args = struct.new(**{struct.fields[2].name: pointer})
            if self.ledger.alive()["Client"]:
                self._pass_on(function, args)
            else:
                self.ledger.ended(function, args)

    # -- one call ----------------------------------------------------------------------------------

    def _wrapped(self, name: str) -> Replacement:
        def call(_: Replaced, args: Any) -> int | None:
            self.calls[name] += 1
            if refusal := self.ledger.refuse(name, args):
                if name in VOID_FUNCTIONS:
                    return None
                return self._error(ErrorCode.INTERNAL, f"misuse: {refusal}")
            try:
                return self._run(name, args)
            except Exception as error:
                self.ledger.misuse.append(f"the table's own {type(error).__name__}: {error}")
                return self._error(ErrorCode.INTERNAL, f"misuse: {error}")

        return call

    def _run(self, name: str, args: Any) -> int | None:
        fault = self._fault
        if fault is None or fault.function != name:
            return self._pass_on(name, args)
        if fault.kind == "error later" and self.calls[name] < 2:
            return self._pass_on(name, args)
        self.struck += 1
        match fault.kind:
            case "nothing":
                return None
            case "late":
                time.sleep(LATE)
                return self._pass_on(name, args)
            case "failing event" | "late event":
                error = self._pass_on(name, args)
                for event in () if error else self._events(name, args):
                    if fault.kind == "failing event":
                        self._failing.add(event)
                    else:
                        self._late[event] = time.monotonic() + LATE
                return error
            case "consumed" | "partial" if self._num_results(args.executable):
                return self._spoiled(name, args, fault.kind)
            case "partial":
                # Nothing is missing where there is nothing.
                return self._pass_on(name, args)
        if name.endswith("_Destroy"):
            self._refused.append((name, getattr(args, _subject(name))))
        return self._error(CODES[fault.kind], f"injected fault in {name}")

    def _pass_on(self, name: str, args: Any) -> int | None:
        event = getattr(args, "event", None) if name.startswith("Event_") else None
        if event is not None and (found := self._on_event(name, event, args)) is not _PASS:
            return found
        # Before the call: as soon as an object has gone, another may have its address.
        self.ledger.ended(name, args)
        own = self._own.get(name)
        error = self._table.real(name, args) if own is None else own(args)
        if error:
            self.ledger.made("Error", error)
            return error
        for field, kind in MAKES.get(name, {}).items():
            self.ledger.made(kind, getattr(args, field))
        if name == "LoadedExecutable_Execute":
            for row in self._rows(args):
                for pointer in row:
                    self.ledger.made("Buffer", pointer)
            for event in self._events(name, args):
                self.ledger.made("Event", event)
        return None

    def _on_event(self, name: str, event: int, args: Any) -> Any:
        """What a late or failing event does; `_PASS` where the real one does."""
        if name == "Event_Destroy":
            self._failing.discard(event)
            self._late.pop(event, None)
            return _PASS
        left = self._late.get(event, 0) - time.monotonic()
        if left > 0:
            if name == "Event_IsReady":
                args.is_ready = False
                return None
            time.sleep(left)
        if event not in self._failing or name == "Event_IsReady":
            return _PASS
        if name == "Event_OnReady":
            callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(args.callback)
            callback(self._error(CODES["failing event"], "the event failed"), args.user_arg)
            return None
        # What it stands for has ended, as it has where a real one fails.
        self._table.real("Event_Await", _AWAIT.new(event=event))
        return self._error(CODES["failing event"], "the event failed")

    def _error(self, code: ErrorCode, message: str) -> int:
        error = self._table.error(code, message)
        self.ledger.made("Error", error)
        return error

    def _events(self, name: str, args: Any) -> list[int]:
        if name == "LoadedExecutable_Execute":
            found = pointers_at(args.device_complete_events, args.num_devices)
        else:
            fields = MAKES.get(name, {}).items()
            found = [getattr(args, field) for field, kind in fields if kind == "Event"]
        return [event for event in found if event]

    # -- executions --------------------------------------------------------------------------------

    def _rows(self, args: Any) -> list[list[int | None]]:
        """The results of an execution, for each device."""
        count = self._num_results(args.executable)
        return [pointers_at(row, count) for row in pointers_at(args.output_lists, args.num_devices)]

    def _num_results(self, loaded: int) -> int:
        inner = self._real.call(
            "LoadedExecutable_GetExecutable", loaded_executable=loaded
        ).executable
        try:
            return int(self._real.call("Executable_NumOutputs", executable=inner).num_outputs)
        finally:
            self._real.call("Executable_Destroy", executable=inner)

    def _spoiled(self, name: str, args: Any, kind: str) -> int | None:
        """An execution that the plugin runs, and whose results are withheld."""
        error = self._table.real(name, args)
        if error:
            self.ledger.made("Error", error)
            return error
        rows, events = self._rows(args), self._events(name, args)
        if kind == "partial":
            self._real.call("Buffer_Destroy", buffer=rows[-1].pop())
            last = pointers_at(args.output_lists, args.num_devices)[-1] or 0
            ctypes.c_void_p.from_address(last + 8 * len(rows[-1])).value = None
            for pointer in (pointer for row in rows for pointer in row):
                self.ledger.made("Buffer", pointer)
            for event in events:
                self.ledger.made("Event", event)
            return None
        for pointer in (pointer for row in rows for pointer in row):
            ready = self._real.call("Buffer_ReadyEvent", buffer=pointer).event
            self._await_and_destroy(ready)
            self._real.call("Buffer_Destroy", buffer=pointer)
        for event in events:
            self._await_and_destroy(event)
        return self._error(CODES[kind], f"injected fault in {name}")

    def _await_and_destroy(self, event: int) -> None:
        try:
            self._real.call("Event_Await", event=event)
        except PjrtError:
            pass
        finally:
            self._real.call("Event_Destroy", event=event)

    # -- the chain ---------------------------------------------------------------------------------

    def _extended(self, start: int | None, count: int) -> int | None:
        base = STRUCTS["PJRT_Extension_Base"]
        self._links = []
        for index in range(count):
            # The last one is longer than its declaration: fields that are newer than this bridge.
            memory = ctypes.create_string_buffer(base.size + 8 * index + 8)
            at = ctypes.addressof(memory) + -ctypes.addressof(memory) % 8
            link = base.ctype.from_address(at)
            link.struct_size, link.type, link.next = base.size + 8 * index, 1000 + index, start
            self._links.append(memory)
            start = at
        return start


_PASS = object()
_AWAIT: Any = FUNCTIONS["Event_Await"]


def _subject(function: str) -> str:
    struct = FUNCTIONS[function]
    assert struct is not None
    return struct.fields[2].name


def kinds_for(function: str, count: int) -> list[str]:
    """The faults that a function can have, where an operation calls it so often."""
    if function in VOID_FUNCTIONS:
        return ["late", "missing"]
    kinds = ["error", "unimplemented", "exhausted", "late", "missing"]
    if count:
        kinds.append("error later")
    struct = FUNCTIONS[function]
    assert struct is not None
    outputs = any(field.out for field in struct.fields)
    # False for ever, they would be a device that hangs and a plugin that lies: nothing to find out.
    answers = ("Event_IsReady", "Buffer_IsDeleted")
    if (outputs or function == "LoadedExecutable_Execute") and function not in answers:
        kinds.append("nothing")
    if "Event" in MAKES.get(function, {}).values() or function == "LoadedExecutable_Execute":
        kinds += ["failing event", "late event"]
    if function == "LoadedExecutable_Execute":
        kinds += ["consumed", "partial"]
    return kinds
