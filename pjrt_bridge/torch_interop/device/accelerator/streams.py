"""Streams and events of `torch.pjrt`: a device has one stream, in which work is given to it."""

from __future__ import annotations

import logging
import time
from typing import Self

import torch

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.torch_interop.compat.devices.third_party_device import DEVICE_TYPE
from pjrt_bridge.torch_interop.device.recording.recording import compute_all
from pjrt_bridge.torch_interop.resident.client.chosen import existing_index
from pjrt_bridge.torch_interop.resident.client.current import Where
from pjrt_bridge.torch_interop.resident.client.failures import seen_later
from pjrt_bridge.torch_interop.resident.storages.storage import wait_for_all

_logger = logging.getLogger(__name__)


def wait() -> None:
    """Wait until everything that was called is over."""
    compute_all()
    with seen_later():
        wait_for_all()


def wait_in_cpp() -> None:
    """The same, called by torch's C++, which takes no exceptions: errors come with the values."""
    try:
        wait()
    except Exception as error:
        _logger.warning("what was waited for failed: %s", error)


def record_stream(x: torch.Tensor, stream: torch.Stream) -> None:
    """`Tensor.record_stream`: arrays live until the programs that read them are over."""


class Stream(torch.Stream):
    """The order in which a device works: that in which work was given to it.

    Args:
        device: the current one by default.
        priority: of no effect, as a device has one stream; that of `torch.cuda.Stream`.

    Attributes:
        device: `torch.device("pjrt:0")`, for example.

    Raises:
        DeviceError: there is no such device.
        ValueError: a device of another type.
    """

    def __new__(cls, device: Where = None, priority: int = 0) -> Self:
        """A stream of torch with the number of the device's only one."""
        index = existing_index(device)
        return super().__new__(cls, stream_id=0, device_index=index, device_type=DEVICE_TYPE)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.device == other.device

    def __hash__(self) -> int:
        return hash(self.device)

    def __repr__(self) -> str:
        return f"<torch.pjrt.Stream device={self.device}>"

    def __enter__(self) -> Stream:
        """Give work to this stream; the device has no other."""
        return self

    def __exit__(self, *error: object) -> None:
        """Give work to the stream of before: the same."""

    def synchronize(self) -> None:
        """Wait until everything that was called is over."""
        wait()

    def query(self) -> bool:
        """Whether everything that was called is over: True, since this waits for it."""
        wait()
        return True

    def record_event(self, event: Event | None = None) -> Event:  # type: ignore[override]
        """Record an event, a new one where none is given."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event | torch.Event) -> None:
        """Programs wait for what they read, whichever device makes it: nothing to do."""

    def wait_stream(self, stream: torch.Stream) -> None:
        """See `wait_event`."""


class Event:
    """A moment in the work of a device, and when it was reached.

    PJRT cannot put marks into the work of a device. An event that takes the time waits, when it is
    recorded, for what was called before; one that does not waits when it is asked.

    Args:
        enable_timing: whether it takes the time.
        blocking: of no effect; that of `torch.cuda.Event`.
        interprocess: refused, as no plugin can.

    Raises:
        DeviceError: an event for several processes.
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            raise DeviceError(
                "found Event(interprocess=True), expected an event of one process: PJRT has none "
                "that another process can wait for"
            )
        self._takes_time = enable_timing
        self._reached: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Be reached when what was called before is over."""
        if self._takes_time:
            wait()
            self._reached = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Programs wait for what they read, whichever device makes it: nothing to do."""

    def synchronize(self) -> None:
        """Wait until it is reached."""
        wait()

    def query(self) -> bool:
        """Whether it is reached: True, since this waits for it."""
        wait()
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between this event and a later one.

        Raises:
            DeviceError: one of them takes no time, or was not recorded.
        """
        for which, event in (("this event", self), ("the other event", end)):
            if event._reached is None:
                why = (
                    "was not recorded: call record() before"
                    if event._takes_time
                    else "takes no time: make it with Event(enable_timing=True)"
                )
                raise DeviceError(f"elapsed_time: {which} {why}")
        assert self._reached is not None
        assert end._reached is not None
        return (end._reached - self._reached) * 1000
