"""The guard by which torch's C++ asks about a device, patched where Python cannot answer.

The guard that torch makes for such a device (`torch/csrc/acc/Module.cpp`) says that there is one
device, so that the engine of autograd makes one thread and refuses backward passes on further
devices, that the first device is the current one, so that `tensor.to(kind)` moves there, and that
it cannot wait. Its table of virtual functions is replaced by a copy in which some answer otherwise.
Where they are in the table is checked first: its class has a name, and functions before, between
and behind those that are replaced are found to be where they are expected.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch

_CLASS = b"N5torch3acc17PythonDeviceGuardE"
"""The type's name in the Itanium C++ ABI, which every compiler for Linux and macOS follows."""

_SLOTS = 24
"""Functions that are copied from the table (`c10/core/impl/DeviceGuardImplInterface.h`).

The destructors behind them are not called.
"""

_CURRENT_DEVICE = 2
_QUERY_EVENT, _DEVICE_COUNT, _QUERY_STREAM, _SYNCHRONIZE_STREAM = 14, 15, 17, 18

_SYNCHRONIZE_EVENT = (19, 20)
"""Where the function may be: torch 2.13 has another one before it. Behind it is the device's."""

_BEFORE = 2
"""Words before the functions: an offset, and what describes the type."""

_Word = ctypes.c_void_p
_WORD = ctypes.sizeof(_Word)
_VALUE = object.__basicsize__
"""Where an object of pybind11 has the address of the C++ object."""

_Current = ctypes.CFUNCTYPE(ctypes.c_uint16, _Word)
"""A device is returned as two bytes, its type and its index (`c10/core/Device.h`)."""

_TRIED_INDEX = 3

_Count = ctypes.CFUNCTYPE(ctypes.c_int8, _Word)
_Query = ctypes.CFUNCTYPE(ctypes.c_bool, _Word, _Word)
_Wait = ctypes.CFUNCTYPE(None, _Word, _Word)

_kept: list[Any] = []
"""Tables and functions that torch calls as long as the process lives."""


def _word(address: int) -> int:
    return _Word.from_address(address).value or 0


def answer_for(
    guard: Any,
    kind: str,
    count: Callable[[], int],
    current: Callable[[], int],
    wait: Callable[[], None],
) -> bool:
    """Have torch ask functions which devices there are, and to wait for all work.

    Args:
        guard: that torch was given; it is never destroyed.
        kind: the name of the device in torch.
        count: gives the number of devices.
        current: gives the index of the current one; raises nothing.
        wait: for all that was called; raises nothing.

    Returns:
        Whether it does; not where the table is another than expected.
    """
    address = _word(id(guard) + _VALUE)
    table = _word(address)
    described = _word(table - _WORD)
    if ctypes.string_at(_word(described + _WORD), len(_CLASS)) != _CLASS:
        return False
    if not _is_as_expected(address, kind):
        return False
    synchronize_event = _synchronize_event(address, kind)
    if synchronize_event is None:
        return False
    waits = _Wait(lambda guard, subject: wait())
    answers = {
        _DEVICE_COUNT: _Count(lambda guard: count()),
        _SYNCHRONIZE_STREAM: waits,
        synchronize_event: waits,
        synchronize_event + 1: waits,
    }
    if _is_current_device(address):
        answers[_CURRENT_DEVICE] = _current_device(current)
    _kept.append((answers, _with_answers(address, answers)))
    return True


def _is_as_expected(address: int, kind: str) -> bool:
    """Whether functions on both sides of those that are replaced are where they are expected."""
    event: Any = torch.Event(kind)
    event.record()
    table = _word(address)
    no = _Query(lambda guard, subject: False)
    try:
        kept = _with_answers(address, {_QUERY_EVENT: no, _QUERY_STREAM: no})
        replaced = not event.query() and not torch.Stream(kind).query()
        del kept
    finally:
        _Word.from_address(address).value = table
    return replaced and event.query() and torch.Stream(kind).query()


def _synchronize_event(address: int, kind: str) -> int | None:
    """The place of the function that waits for an event; None if it is at another place."""
    called: list[int] = []
    event: Any = torch.Event(kind)
    event.record()
    table = _word(address)
    try:
        kept = _with_answers(address, {slot: _noting(slot, called) for slot in _SYNCHRONIZE_EVENT})
        event.synchronize()
        del kept
    except RuntimeError:
        # What is there without an answer raises.
        return None
    finally:
        _Word.from_address(address).value = table
    return called[0] if len(called) == 1 else None


def _is_current_device(address: int) -> bool:
    """Whether the function that gives the current device is where it is expected."""
    table = _word(address)
    before: int = torch._C._accelerator_getDeviceIndex()
    try:
        kept = _with_answers(address, {_CURRENT_DEVICE: _current_device(lambda: _TRIED_INDEX)})
        found: int = torch._C._accelerator_getDeviceIndex()
        del kept
    finally:
        _Word.from_address(address).value = table
    return found == _TRIED_INDEX and before == 0


def _current_device(index: Callable[[], int]) -> Any:
    kind: Any = torch._C._autograd.DeviceType.PrivateUse1
    number = int(kind)
    return _Current(lambda guard: number | index() << 8)


def _noting(slot: int, called: list[int]) -> Any:
    """A function that notes that it was called."""
    return _Wait(lambda guard, subject: called.append(slot))


def _with_answers(address: int, answers: Mapping[int, Any]) -> Any:
    """Give an object of C++ a copy of its table with other functions; gives the copy to keep."""
    start = _word(address) - _BEFORE * _WORD
    copy = (_Word * (_BEFORE + _SLOTS))()
    ctypes.memmove(copy, start, ctypes.sizeof(copy))
    for slot, function in answers.items():
        copy[_BEFORE + slot] = ctypes.cast(function, _Word)
    _Word.from_address(address).value = ctypes.addressof(copy) + _BEFORE * _WORD
    return copy
