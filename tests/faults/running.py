"""Runs a case of the matrix: the operation under its fault, then without, then an empty house."""

from __future__ import annotations

import gc
import time
import warnings
from typing import Any

from pjrt_bridge.errors import HostFallbackWarning, PjrtBridgeError, PjrtError
from pjrt_bridge.runtime.ownership import pending
from pjrt_bridge.torch_interop.backend import pjrt
from tests.faults import torch_operations
from tests.faults.case import NOT_HERE, Case
from tests.faults.faulty import CODES, Fault
from tests.faults.operations import OPERATIONS, Act
from tests.faults.world import AbsentDevice, World, beneath
from tests.sweeping.worker import Verdict

_ACCOUNTS = frozenset(
    {
        "Error_GetCode",
        "Plugin_Attributes",
        "Client_PlatformName",
        "Client_PlatformVersion",
        "Client_ProcessIndex",
        "Client_Devices",
        "Client_AddressableMemories",
        "DeviceDescription_Id",
        "DeviceDescription_ProcessIndex",
        "DeviceDescription_Kind",
        "DeviceDescription_ToString",
        "DeviceDescription_Attributes",
        "Device_GetAttributes",
        "Device_LocalHardwareId",
        "Device_AddressableMemories",
        "Device_DefaultMemory",
        "Device_MemoryStats",
        "Memory_Id",
        "Memory_Kind",
        "Memory_ToString",
        "Buffer_Memory",
        "Buffer_OnDeviceSizeInBytes",
        "Executable_GetCostAnalysis",
        "Executable_GetCompiledMemoryStats",
        "Executable_Fingerprint",
        "Executable_ParameterMemoryKinds",
        "TopologyDescription_Attributes",
        "TopologyDescription_PlatformName",
        "TopologyDescription_PlatformVersion",
    }
)
"""What a plugin says about itself. Where it says less, or a falsehood, the bridge passes it on."""

_TELLS = (
    "plugin/",
    "client/create",
    "client/topology",
    "device/",
    "read/about",
    "executable/",
    "put/memory",
    "compile/refused",
    "gate/",
)
"""Operations whose results are such accounts, among others."""


class Stage:
    """An operation that is prepared; it stays for further cases, which so must leave it whole."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.act: Act = OPERATIONS[name][1](world)
        # What is made once and kept is there before anything is counted.
        self.expected = self.act()
        world.rest()
        # What is there now stays, and need not be looked at after each case.
        gc.freeze()
        self.alive = world.alive()

    def close(self) -> str | None:
        """End it; what is left."""
        gc.unfreeze()
        del self.act
        self.world.close()
        left = self.world.settled()
        gc.freeze()
        return left


_stage: Stage | None = None
torch_operations.register()


def leave() -> str | None:
    """End the stage of the last case; what is left."""
    global _stage
    stage, _stage = _stage, None
    return None if stage is None else stage.close()


def _enter(name: str) -> Stage:
    global _stage
    if _stage is None or _stage.name != name:
        leave()
        _stage = Stage(name, World(OPERATIONS[name][0]))
    return _stage


def run_case(case: Case) -> Verdict:
    """What became of a case."""
    started = time.perf_counter()
    verdict = Verdict()
    try:
        if case.kind == "record":
            _record(case, verdict)
        elif case.kind in ("missing", "cut"):
            leave()
            _build_with_holes(case, verdict)
        else:
            _strike(case, verdict)
    finally:
        if verdict.problems:
            leave()
    verdict.seconds = time.perf_counter() - started
    return verdict


def _record(case: Case, verdict: Verdict) -> None:
    try:
        stage = _enter(case.operation)
    except (AbsentDevice, PjrtBridgeError, BufferError) as error:
        if beneath() == "cpu":
            raise
        # What only a plugin with two devices has, or one that uses host memory in place.
        verdict.outcomes = {f"{NOT_HERE}{type(error).__name__}: {error}"}
        return
    with stage.world.table.strike(None):
        found = stage.act()
    _compare(found, stage.expected, verdict)
    verdict.outcomes |= {f"{name}={count}" for name, count in stage.world.table.calls.items()}


def _strike(case: Case, verdict: Verdict) -> None:
    stage = _enter(case.operation)
    table = stage.world.table
    # What was said before is not said again.
    pjrt.reset()  # type: ignore[attr-defined]
    with table.strike(Fault(case.function, case.kind)):
        for _ in range(2 if case.kind == "error later" else 1):
            if _attempt(stage.act, stage.expected, verdict, case):
                break
    if not table.struck:
        verdict.problems.append("the fault did not strike")
    table.take_back()
    pending.lost.clear()
    _aftermath(stage, verdict)


def _attempt(act: Act, expected: Any, verdict: Verdict, case: Case) -> bool:
    """Run it under a fault; whether an exception came."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = act()
        # BufferError is what the DLPack protocol asks for.
        except (PjrtBridgeError, BufferError) as error:
            _judge_error(error, verdict, case)
            # A device that began to write into arguments is the one failure that PyTorch cannot
            # make up for; the error says so.
            refused = case.kind == "missing" and "cannot be used" in str(error)
            noted = bool(getattr(error, "__notes__", ()))
            if case.operation.endswith(" host") and not (noted or refused):
                verdict.problems.append(f"PyTorch does not take over: {error}")
            return True
    told = any(issubclass(one.category, HostFallbackWarning) for one in caught)
    verdict.outcomes.add("PyTorch takes over" if told else "works")
    unexpected = [str(one.message) for one in caught if one.category is not HostFallbackWarning]
    verdict.problems += [f"warned: {text}" for text in unexpected]
    told_less = (
        case.function in _ACCOUNTS or case.kind == "cut" or case.operation.startswith("gate/")
    )
    if told_less and found != expected and case.operation.startswith(_TELLS):
        verdict.outcomes = {"works, and tells less"}
    else:
        _compare(found, expected, verdict)
    return False


def _judge_error(error: Exception, verdict: Verdict, case: Case) -> None:
    verdict.outcomes.add(f"raises {type(error).__name__}")
    text = str(error)
    if "misuse" in text:
        verdict.problems.append(text)
    if "faulty" not in text:
        verdict.problems.append(f"does not name the plugin: {text}")
    # Of a function that is missing the bridge may know before it is needed.
    named = case.kind in CODES or isinstance(error, PjrtError)
    if named and case.kind not in ("failing event", "cut") and case.function not in text:
        verdict.problems.append(f"does not name the function: {text}")


def _aftermath(stage: Stage, verdict: Verdict) -> None:
    """Without the fault all is as it was."""
    table = stage.world.table
    verdict.problems += [f"misuse: {text}" for text in table.ledger.misuse]
    table.ledger.misuse.clear()
    if stage.world.lost:
        # A program over several devices began on some of them: a new client does the same.
        expected, left = stage.expected, leave()
        verdict.problems += [left] if left else []
        stage = _enter(stage.name)
        _compare(stage.expected, expected, verdict, "with a new client: ")
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _compare(stage.act(), stage.expected, verdict, "afterwards: ")
    except Exception as error:
        verdict.problems.append(f"afterwards: {type(error).__name__}: {error}")
    if left := stage.world.settled(stage.alive):
        verdict.problems.append(left)


def _build_with_holes(case: Case, verdict: Verdict) -> None:
    """A table that lacks a function, or ends early, from the start."""
    expected = _expected(case.operation)
    kind, prepare = OPERATIONS[case.operation]
    if case.kind == "cut":
        world = World(kind, slots=int(case.function))
    else:
        world = World(kind, without=[case.function])
    act: Act | None = None

    def whole() -> Any:
        nonlocal act
        act = prepare(world)
        return act()

    raised = _attempt(whole, expected, verdict, case)
    verdict.problems += [f"misuse: {text}" for text in world.table.ledger.misuse]
    if case.kind == "missing":
        world.table.fill(case.function)
        try:
            act = None
            world.close()
            _compare(prepare(world)(), expected, verdict, "afterwards: ")
        except Exception as error:
            verdict.problems.append(f"afterwards: {type(error).__name__}: {error}")
    del act, raised, whole
    world.close()
    # What the plugin could not take back stays: there is no function for it.
    if not case.function.endswith("_Destroy") and (left := world.settled()):
        verdict.problems.append(left)


_results: dict[str, Any] = {}


def _expected(name: str) -> Any:
    if name not in _results:
        world = World(OPERATIONS[name][0])
        act = OPERATIONS[name][1](world)
        _results[name] = act()
        del act
        world.close()
        world.settled()
    return _results[name]


def _compare(found: Any, expected: Any, verdict: Verdict, when: str = "") -> None:
    if found != expected:
        verdict.problems.append(f"{when}wrong: {found!r:.300}, expected {expected!r:.300}")
