"""The functions through which a plugin calls a key-value store, called as plugins do."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.errors import ErrorCode, OptionError
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge.runtime.keyvalue import Prefixed, Processes, Registration
from pjrt_bridge_reference.slots import ERRORS
from pjrt_bridge_reference.store import Store


class Memory:
    """A store of this process alone."""

    def __init__(self, raised: BaseException | None = None) -> None:
        self.values: dict[str, Any] = {}
        self.raised = raised

    def get(self, key: str, timeout: float) -> bytes:
        if self.raised is not None:
            raise self.raised
        if key not in self.values:
            raise TimeoutError(f"nobody came within {timeout:g} s")
        return self.values[key]  # type: ignore[no-any-return]

    def try_get(self, key: str) -> bytes | None:
        if self.raised is not None:
            raise self.raised
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        if self.raised is not None:
            raise self.raised
        self.values[key] = value


class _Arguments:
    """Those fields of PJRT_Client_Create_Args that are about the store."""

    def __init__(self, registration: Registration) -> None:
        self.__dict__.update(registration.arguments)


def called(registration: Registration) -> Store:
    return Store(_Arguments(registration))


@pytest.fixture(autouse=True)
def _no_error_is_left() -> Iterator[None]:
    before = ERRORS.count()
    yield
    assert ERRORS.count() == before


@pytest.mark.parametrize("value", [b"", b"\0\xff", b"x" * 100_000])
def test_values_come_through(value: bytes) -> None:
    memory = Memory()
    store = called(registration := Registration(memory))
    store.put("a key, ü", value)
    assert memory.values == {"a key, ü": value}
    assert store.get("a key, ü", 1) == store.try_get("a key, ü") == value
    assert registration.store is memory


def test_what_is_not_there() -> None:
    store = called(registration := Registration(Memory()))
    assert store.get("k", 0.25) is None
    assert store.try_get("k") is None
    del registration


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (ConnectionResetError("gone"), ErrorCode.UNAVAILABLE, "ConnectionResetError: gone"),
        (KeyError("k"), ErrorCode.INTERNAL, "KeyError: 'k'"),
        (RuntimeError("sürrogate \udc80"), ErrorCode.INTERNAL, "RuntimeError"),
        (KeyboardInterrupt(), ErrorCode.CANCELLED, "KeyboardInterrupt"),
        (SystemExit(3), ErrorCode.CANCELLED, "SystemExit"),
    ],
)
def test_what_a_store_raises_is_returned(raised: BaseException, code: int, text: str) -> None:
    store = called(registration := Registration(Memory(raised)))
    for call in (
        lambda: store.get("name", 1),
        lambda: store.try_get("name"),
        lambda: store.put("name", b""),
    ):
        with pytest.raises(Status) as caught:
            call()
        assert caught.value.code == code
        assert "key 'name': " in caught.value.message
        assert text in caught.value.message
    assert registration.interrupt is (None if isinstance(raised, Exception) else raised)


@pytest.mark.parametrize("value", ["text", 7])
def test_a_store_that_gives_no_bytes(value: object) -> None:
    memory = Memory()
    memory.values["k"] = value
    store = called(registration := Registration(memory))
    with pytest.raises(Status, match=f"get of the store returned {type(value).__name__}"):
        store.get("k", 1)
    del registration


def test_a_client_that_has_ended() -> None:
    store = called(registration := Registration(Memory()))
    del registration
    gc.collect()
    with pytest.raises(Status, match="the client of this key-value store has ended") as caught:
        store.put("k", b"")
    assert caught.value.code == ErrorCode.FAILED_PRECONDITION


def test_many_threads() -> None:
    memory = Memory()
    store = called(registration := Registration(memory))
    failed = []

    def work(number: int) -> None:
        for step in range(50):
            store.put(f"{number}", b"%d" % step)
            if store.get(f"{number}", 1) != b"%d" % step:
                failed.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(memory.values) == 6
    del registration


def test_prefixes() -> None:
    memory = Memory()
    Prefixed(memory, "a/0").put("k", b"v")
    assert memory.values == {"a/0/k": b"v"}
    assert Prefixed(memory, "a/0").get("k", 1) == b"v"
    assert Prefixed(memory, "a/1").try_get("k") is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((2, 2, Memory()), "Processes.rank: found 2, expected an int from 0 to 1"),
        ((True, 2, Memory()), "Processes.rank: found True"),
        ((0, 0, Memory()), "Processes.count: found 0"),
        ((0, 2, {}), "Processes.store: found a dict, expected an object with the methods get"),
        ((0, 2, Memory(), -1), "Processes.local_rank: found -1"),
    ],
)
def test_processes_that_cannot_be(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        Processes(*arguments)


def test_an_interrupt_of_a_wait_is_raised_by_who_made_the_client(reference: Plugin) -> None:
    options = {"node_id": 0, "num_nodes": 2, "process_timeout_ms": 1000}
    with pytest.raises(KeyboardInterrupt):
        Client(reference, options, store=Memory(KeyboardInterrupt()))
    with pytest.raises(OptionError, match="process 0: found no place in it: OSError: down"):
        reference.client(options, store=Memory(OSError("down")))
    with pytest.raises(OptionError, match="store of a client of plugin 'reference': found 3"):
        reference.client(options, store=3)  # type: ignore[arg-type]


@pytest.fixture(name="reference")
def _reference() -> Plugin:
    from pjrt_bridge import registry
    from pjrt_bridge_reference import pjrt_bridge_plugins

    return registry.load(pjrt_bridge_plugins())
