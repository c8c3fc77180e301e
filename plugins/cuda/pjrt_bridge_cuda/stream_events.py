"""Events behind the work on CUDA streams, through the driver (CUDA Driver API, Event Management).

A plugin and the frameworks beside it use one context for each GPU, the primary one, and so do
these events.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pjrt_bridge.errors import DataError

_LIBRARY = "libcuda.so.1"
_DISABLE_TIMING = 2
"""CU_EVENT_DISABLE_TIMING."""

_SUCCESS, _NOT_READY = 0, 600
"""CUDA_SUCCESS and CUDA_ERROR_NOT_READY."""


@dataclass(frozen=True)
class Recorded:
    """An event that was recorded.

    Attributes:
        device: number of the GPU.
        handle: of the event.
    """

    device: int
    handle: int


class CudaEvents:
    """See `pjrt_bridge.runtime.core.platforms.StreamEvents`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contexts: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}

    def record(self, device: int, stream: int) -> Recorded:
        """An event behind all work that is on a stream now.

        Args:
            device: number of the GPU, as the driver counts.
            stream: its handle; 1 is the legacy default stream, 2 that of the thread.

        Raises:
            DataError: the driver refused, with its number for the reason.
        """
        with self._in_context(device):
            return self._recorded(device, stream)

    def follow(self, device: int, stream: int, leading: int) -> None:
        """Let a stream wait for all work that is on another one now.

        Args:
            device: number of the GPU, as the driver counts.
            stream: the handle of the one that waits.
            leading: the handle of the other one.

        Raises:
            DataError: the driver refused, with its number for the reason.
        """
        with self._in_context(device):
            event = self._recorded(device, leading)
            self._call(
                "cuStreamWaitEvent", ctypes.c_void_p(stream), ctypes.c_void_p(event.handle), 0
            )
            # What waits for it keeps what was recorded when it is recorded again.
            with self._lock:
                self._free[device].append(event.handle)

    def is_over(self, event: object) -> bool:
        """Whether the work before an event is over; the event is used again then.

        Work that failed is over, too: whoever started it learns so.
        """
        assert isinstance(event, Recorded)
        with self._in_context(event.device):
            if self._driver.cuEventQuery(ctypes.c_void_p(event.handle)) == _NOT_READY:
                return False
        with self._lock:
            self._free.setdefault(event.device, []).append(event.handle)
        return True

    def _recorded(self, device: int, stream: int) -> Recorded:
        with self._lock:
            free = self._free.setdefault(device, [])
            handle = free.pop() if free else self._made()
        self._call("cuEventRecord", ctypes.c_void_p(handle), ctypes.c_void_p(stream))
        return Recorded(device, handle)

    @cached_property
    def _driver(self) -> Any:
        driver = ctypes.CDLL(_LIBRARY)
        driver.cuInit(0)
        return driver

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code != _SUCCESS:
            raise DataError(f"{name} of the CUDA driver: found CUresult {code}, expected 0")

    def _made(self) -> int:
        handle = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(handle), _DISABLE_TIMING)
        return handle.value or 0

    @contextmanager
    def _in_context(self, device: int) -> Iterator[None]:
        with self._lock:
            context = self._contexts.get(device)
            if context is None:
                found = ctypes.c_void_p()
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(found), device)
                context = self._contexts[device] = found.value or 0
        self._call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
