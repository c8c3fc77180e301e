"""The store through which the processes of one client find each other.

A plugin whose client spans processes calls three functions that its caller gives it: to put a value
under a key, to wait for the value of a key, and to look for it. They are made here of a
`KeyValueStore`, such as one of `torch.distributed`.

Each function exists once in a process and is never freed, since plugins have threads that outlive
their clients; which store is meant says `user_arg`. A call that comes after the end of the client
gets an error.

Source: pjrt_c_api.h, PJRT_KeyValueGetCallback, PJRT_KeyValueTryGetCallback and
PJRT_KeyValuePutCallback.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.errors import ErrorCode, OptionError
from pjrt_bridge.runtime.ownership.callbacks import calling_back
from pjrt_bridge.runtime.ownership.signals import answered
from pjrt_bridge.wrong_arguments import wrong


@runtime_checkable
class KeyValueStore(Protocol):
    """Values by key that all processes of a client see. Called from any thread.

    What a method raises becomes an error in the plugin: TimeoutError that of a deadline,
    ConnectionError that the store is unavailable, anything else an internal error.
    """

    def get(self, key: str, timeout: float) -> bytes:
        """The value of a key; waits for it.

        Args:
            key: what `put` was given.
            timeout: seconds to wait at most.

        Raises:
            TimeoutError: no process has put it in this time.
        """

    def try_get(self, key: str) -> bytes | None:
        """The value of a key, None where no process has put it yet."""

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key."""


@dataclass(frozen=True, eq=False)
class Processes:
    """The processes that a client is to span, as this process knows them.

    Attributes:
        rank: number of this process, from 0.
        count: how many there are.
        store: what they all see.
        local_rank: number of this process on its machine, which says which of the machine's devices
            is its own; None leaves all of them to it.

    Raises:
        OptionError: a rank that is none of so many processes, or no store.
    """

    rank: int
    count: int
    store: KeyValueStore
    local_rank: int | None = None

    def __post_init__(self) -> None:
        if type(self.count) is not int or not 1 <= self.count < 1 << 31:
            raise OptionError(f"Processes.count: found {self.count!r}, expected an int from 1 up")
        if type(self.rank) is not int or not 0 <= self.rank < self.count:
            raise OptionError(
                f"Processes.rank: found {self.rank!r}, expected an int from 0 to {self.count - 1}"
            )
        local = self.local_rank
        if local is not None and (type(local) is not int or local < 0):
            raise OptionError(
                f"Processes.local_rank: found {local!r}, expected an int from 0 up or None"
            )
        check_store(self.store, "Processes.store")


def check_store(store: object, what: str) -> None:
    """Refuse what is no key-value store.

    Raises:
        OptionError: a method is missing.
    """
    if not isinstance(store, KeyValueStore):
        raise OptionError(wrong(what, store, "an object with the methods get, try_get and put"))


class Prefixed:
    """A store whose keys begin with a text in another one."""

    def __init__(self, store: KeyValueStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def get(self, key: str, timeout: float) -> bytes:
        """See `KeyValueStore`."""
        return self._store.get(f"{self._prefix}/{key}", timeout)

    def try_get(self, key: str) -> bytes | None:
        """See `KeyValueStore`."""
        return self._store.try_get(f"{self._prefix}/{key}")

    def put(self, key: str, value: bytes) -> None:
        """See `KeyValueStore`."""
        self._store.put(f"{self._prefix}/{key}", value)


class Registration:
    """A store that a plugin may use, for as long as this object lives.

    Attributes:
        store: the store.
        interrupt: what interrupted a call on Python's main thread, such as KeyboardInterrupt. It
            cannot be raised through the plugin, so whoever called the plugin raises it afterwards.
    """

    def __init__(self, store: KeyValueStore) -> None:
        self.store = store
        self.interrupt: BaseException | None = None
        self._number = next(_numbers)
        _registered[self._number] = self

    @property
    def arguments(self) -> dict[str, int]:
        """The fields of PJRT_Client_Create_Args that hand the store over."""
        found: dict[str, int] = {}
        for name, callback in (("get", _get), ("try_get", _try_get), ("put", _put)):
            found[f"kv_{name}_callback"] = ctypes.cast(callback, ctypes.c_void_p).value or 0
            found[f"kv_{name}_user_arg"] = self._number
        return found


_numbers = itertools.count(1)
_registered: weakref.WeakValueDictionary[int, Registration] = weakref.WeakValueDictionary()

_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
"""How a callback makes a PJRT_Error: PJRT_CallbackError of pjrt_c_api.h."""

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

# Values are memory of the C library, so that the plugin may free them on any thread and when the
# interpreter is gone.
_libc = ctypes.CDLL(None)
_malloc: Callable[[int], int | None] = _libc.malloc
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.malloc.restype = ctypes.c_void_p
_FREE = ctypes.cast(_libc.free, ctypes.c_void_p).value


class _Failure(Exception):
    """An error with a code of its own."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def _callback(struct: str, work: Callable[[KeyValueStore, str, Any], None]) -> Any:
    """A C function that does something with the store that its args struct names."""
    declared = STRUCTS[struct].ctype

    def call(address: int) -> int | None:
        args = declared.from_address(address)
        registration, key = None, ""
        # ctypes would print what is raised here, and return 0, which means success.
        try:
            registration = _registered.get(args.user_arg or 0)
            key = ctypes.string_at(args.key, args.key_size).decode(errors="backslashreplace")
            if registration is None:
                raise _Failure(
                    ErrorCode.FAILED_PRECONDITION, "the client of this key-value store has ended"
                )
            # What a plugin's objects free while a plugin waits for this call has to wait, too.
            with calling_back(), answered():
                work(registration.store, key, args)
            return None
        except _Failure as error:
            code, text = error.code, str(error)
        except TimeoutError as error:
            code, text = ErrorCode.DEADLINE_EXCEEDED, str(error) or "no process has put it in time"
        except ConnectionError as error:
            code, text = ErrorCode.UNAVAILABLE, f"{type(error).__name__}: {error}"
        except Exception as error:
            code, text = ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"
        except BaseException as error:
            code, text = ErrorCode.CANCELLED, type(error).__name__
            if registration is not None:
                registration.interrupt = error
        return _error(args, code, f"key {key!r}: {text}")

    return _CALLBACK(call)


def _error(args: Any, code: ErrorCode, text: str) -> int | None:
    """A PJRT_Error, made by the function that `callback_error` points to."""
    encoded = text.encode(errors="backslashreplace")
    make = _ERROR(ctypes.c_void_p.from_address(args.callback_error).value or 0)
    made: int | None = make(code, encoded, len(encoded))
    return made


def _give(args: Any, value: object, method: str) -> None:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{method} of the store returned {type(value).__name__}, expected bytes")
    data = bytes(value)
    # An empty value has an address as well: NULL would mean that there is none.
    memory = _malloc(len(data) or 1)
    if not memory:
        raise _Failure(ErrorCode.RESOURCE_EXHAUSTED, f"no memory for {len(data)} bytes")
    ctypes.memmove(memory, data, len(data))
    args.value, args.value_size, args.value_deleter_callback = memory, len(data), _FREE


def _do_get(store: KeyValueStore, key: str, args: Any) -> None:
    _give(args, store.get(key, max(args.timeout_in_ms, 0) / 1000), "get")


def _do_try_get(store: KeyValueStore, key: str, args: Any) -> None:
    value = store.try_get(key)
    if value is None:
        raise _Failure(ErrorCode.NOT_FOUND, "no process has put it yet")
    _give(args, value, "try_get")


def _do_put(store: KeyValueStore, key: str, args: Any) -> None:
    store.put(key, ctypes.string_at(args.value, args.value_size) if args.value_size else b"")


_get = _callback("PJRT_KeyValueGetCallback_Args", _do_get)
_try_get = _callback("PJRT_KeyValueTryGetCallback_Args", _do_try_get)
_put = _callback("PJRT_KeyValuePutCallback_Args", _do_put)
