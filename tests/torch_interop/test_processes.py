"""The processes of torchrun, and its store as a key-value store; see tests/reference, too."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
import torch.distributed as dist

from pjrt_bridge.errors import OptionError
from pjrt_bridge.torch_interop import processes
from pjrt_bridge.torch_interop.processes import TorchStore, torchrun


@pytest.fixture(name="server")
def _server() -> Any:
    return dist.TCPStore("127.0.0.1", 0, 1, is_master=True)  # type: ignore[attr-defined]


@pytest.fixture(name="environment")
def _environment(server: Any, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """That of the only process of a run whose store another one keeps."""
    values = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    values |= {"MASTER_PORT": str(server.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes, "_found", {})
    return monkeypatch


def test_values_and_limits(server: Any) -> None:
    store = TorchStore(server)
    assert store.try_get("k") is None
    with pytest.raises(TimeoutError, match=r"no process has put it within 0\.05 s"):
        store.get("k", 0.05)
    store.put("k", b"\0\xff")
    assert store.get("k", 0) == store.try_get("k") == b"\0\xff"


def test_a_thread_that_waits_keeps_nobody_from_putting(server: Any) -> None:
    store, found = TorchStore(server), []
    thread = threading.Thread(target=lambda: found.append(store.get("k", 20)))
    thread.start()
    time.sleep(0.02)
    store.put("k", b"v")
    thread.join()
    assert found == [b"v"]


def test_a_store_whose_process_has_ended() -> None:
    master = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)  # type: ignore[attr-defined]
    port = master.port
    store = TorchStore(
        dist.TCPStore("127.0.0.1", port, 1, is_master=False)  # type: ignore[attr-defined]
    )
    store.put("k", b"v")
    del master
    with pytest.raises(ConnectionError, match="Error: "):
        list(map(store.try_get, ["k"] * 3))


def test_a_restart_reads_nothing_of_the_run_before(environment: pytest.MonkeyPatch) -> None:
    first = torchrun()
    assert (first.rank, first.count, first.local_rank) == (0, 1, 0)
    assert torchrun() is first
    first.store.put("k", b"old")
    environment.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = torchrun()
    assert again.store.try_get("k") is None
    assert first.store.try_get("k") == b"old"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("RANK", None, "the environment has no RANK; expected what torchrun sets"),
        ("MASTER_PORT", "", "the environment has no MASTER_PORT"),
        ("WORLD_SIZE", "two", "WORLD_SIZE is 'two', expected a number"),
        ("LOCAL_RANK", "-1", "LOCAL_RANK is '-1', expected a number"),
        ("RANK", "1", "Processes.rank: found 1, expected an int from 0 to 0"),
    ],
)
def test_an_environment_that_is_none_of_torchruns(
    environment: pytest.MonkeyPatch, name: str, value: str | None, text: str
) -> None:
    environment.delenv(name) if value is None else environment.setenv(name, value)
    with pytest.raises(OptionError, match=text):
        torchrun()


def test_a_store_that_is_not_there(environment: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        environment.setenv("MASTER_PORT", str(unused.getsockname()[1]))
        begin = time.monotonic()
        with pytest.raises(OptionError, match=r"process 0 of 1 found no store at 127\.0\.0\.1:"):
            torchrun(timeout=0.3)
        assert time.monotonic() - begin < 20
