"""The processes that torchrun started, for clients that span them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from pjrt_bridge.errors import OptionError
from pjrt_bridge.runtime.keyvalue import Processes

_T = TypeVar("_T")

_SHORTEST, _LONGEST = 0.001, 0.05
"""Seconds between two looks at a store."""

_lock = threading.Lock()
_found: dict[tuple[str, ...], Processes] = {}


class TorchStore:
    """A store of `torch.distributed` as a key-value store of clients.

    Args:
        store: such as a TCPStore. Its operations exclude each other, so one that waits would keep
            other threads from setting what it waits for; waiting is done here, by looking again.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, key: str, timeout: float) -> bytes:
        """See `KeyValueStore`."""
        end, pause = time.monotonic() + timeout, _SHORTEST
        while (found := self.try_get(key)) is None:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no process has put it within {timeout:g} s")
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST)
        return found

    def try_get(self, key: str) -> bytes | None:
        """See `KeyValueStore`."""
        there: bool = _reached(lambda: self._store.check([key]))
        return _reached(lambda: bytes(self._store.get(key))) if there else None

    def put(self, key: str, value: bytes) -> None:
        """See `KeyValueStore`."""
        _reached(lambda: self._store.set(key, value))


def _reached(operation: Callable[[], _T]) -> _T:
    try:
        return operation()
    except dist.DistError as error:
        # The process that kept the store has ended, say.
        raise ConnectionError(f"{type(error).__name__}: {error}") from error


def torchrun(timeout: float = 30.0) -> Processes:
    """The processes of this run: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

    The store is the one that `torch.distributed.init_process_group` meets in as well; either may
    come first. The keys begin with the run and its restart, so a process that torchrun started anew
    never reads what the ones before it said. The same for the same environment.

    Args:
        timeout: seconds to wait for the store, and for the other processes to find it.

    Raises:
        OptionError: a variable is missing or no number, or there is no store there in this time.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise OptionError(
            f"processes 'torchrun': the environment has no {', '.join(missing)}; expected what "
            "torchrun sets: start the program with torchrun, or set them"
        )
    run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    local = os.environ.get("LOCAL_RANK", "")
    key = (*(os.environ[name] for name in names), run, restart, local)
    with _lock:
        if key not in _found:
            prefix = f"pjrt_bridge/{run}/{restart}"
            _found[key] = Processes(
                rank=_number("RANK"),
                count=_number("WORLD_SIZE"),
                store=TorchStore(_prefixed(prefix, _rendezvous(timeout))),
                local_rank=_number("LOCAL_RANK") if local else None,
            )
        return _found[key]


# Torch has these names in its documentation, and its stubs do not.


def _prefixed(prefix: str, store: Any) -> Any:
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _rendezvous(timeout: float) -> Any:
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    _number("MASTER_PORT")
    try:
        met = dist.rendezvous(  # type: ignore[attr-defined]
            "env://", timeout=timedelta(seconds=timeout)
        )
        store, _, _ = next(met)
    except (dist.DistError, RuntimeError, ValueError) as error:
        raise OptionError(
            f"processes 'torchrun': process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} "
            f"found no store at {where} (MASTER_ADDR, MASTER_PORT) with all processes within "
            f"{timeout:g} s: {error}"
        ) from error
    return store


def _number(name: str) -> int:
    text = os.environ[name]
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"processes 'torchrun': {name} is {text!r}, expected a number")
    return int(text)
