"""`torch.pjrt`: what `torch.cuda` is for its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch

from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.torch_interop.device.accelerator import streams
from pjrt_bridge.torch_interop.named_device.naming import is_available
from pjrt_bridge.torch_interop.resident.client import chosen, current, memory
from pjrt_bridge.torch_interop.resident.client.current import Where, index_of
from pjrt_bridge.torch_interop.resident.client.failures import OutOfDeviceMemory


class DeviceModule:
    """The functions that torch, and code for any accelerator, look for in a device's module."""

    __name__ = "torch.pjrt"

    def init(self) -> None:
        """Open the client now."""
        chosen.client()

    def device_count(self) -> int:
        """The number of devices; 0 while the device is not available."""
        if not is_available():
            return 0
        try:
            return chosen.device_count()
        except PjrtBridgeError:
            return 0

    def current_device(self) -> int:
        """The index of the device that `torch.device("pjrt")` is in this thread."""
        return current.current_index()

    def set_device(self, device: Where) -> None:
        """Make another device the current one of this thread.

        Raises:
            DeviceError: there is no such device.
        """
        current.set_current_index(chosen.existing_index(device))

    def device(self, device: Where) -> _Current:
        """A context in which another device is the current one."""
        return _Current(index_of(device))

    def get_device_name(self, device: Where = None) -> str:
        """The plugin's name for a device."""
        return chosen.chosen(index_of(device))[1].kind

    def get_device_properties(self, device: Where = None) -> memory.DeviceProperties:
        """What the plugin tells of a device."""
        client, found = chosen.chosen(index_of(device))
        return memory.properties(
            found, platform=client.platform_name, version=client.platform_version
        )

    def synchronize(self, device: Where = None) -> None:
        """Wait until everything that was called is over."""
        if device is not None:
            chosen.existing_index(device)
        streams.wait()

    Stream = streams.Stream
    Event = streams.Event
    OutOfMemoryError = OutOfDeviceMemory

    def current_stream(self, device: Where = None) -> streams.Stream:
        """The only stream of a device."""
        return streams.Stream(device)

    def default_stream(self, device: Where = None) -> streams.Stream:
        """See `current_stream`."""
        return streams.Stream(device)

    def set_stream(self, stream: streams.Stream) -> None:
        """Give work to a stream from now on; there is one only: nothing to do."""

    def stream(self, stream: streams.Stream | None) -> AbstractContextManager[None]:
        """A context in which work is given to a stream; there is one only."""
        return nullcontext()

    def manual_seed(self, seed: int) -> None:
        """Random numbers are drawn from the host's generator, which torch.manual_seed sets."""

    def manual_seed_all(self, seed: int) -> None:
        """See `manual_seed`."""

    def seed(self) -> int:
        """See `manual_seed`."""
        return torch.initial_seed()

    def initial_seed(self) -> int:
        """The seed of the host's generator."""
        return torch.initial_seed()

    def get_rng_state(self, device: Where = None) -> torch.Tensor:
        """The state of the host's generator, from which random numbers of the device follow."""
        return torch.random.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Where = None) -> None:
        """Set it."""
        torch.random.set_rng_state(state.cpu())

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """The state of the host's generator, once for each device."""
        return [self.get_rng_state(index) for index in range(self.device_count())]

    def set_rng_state_all(self, states: Iterable[torch.Tensor]) -> None:
        """Set it; the states of all devices are one."""
        for state in states:
            self.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """The element types of `torch.autocast("pjrt")`."""
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self) -> bool:
        """Programs compute in bfloat16 on every plugin that has the element type."""
        return True

    def memory_stats(self, device: Where = None) -> Mapping[str, int]:
        """The plugin's statistics of a device's memory, in bytes.

        Raises:
            Unimplemented: it tells nothing.
        """
        return chosen.chosen(index_of(device))[1].memory_stats()

    def memory_allocated(self, device: Where = None) -> int:
        """Bytes that are in use; 0 where the plugin does not tell."""
        return self._told("bytes_in_use", device)

    def max_memory_allocated(self, device: Where = None) -> int:
        """The most bytes that were in use; 0 where the plugin does not tell."""
        return self._told("peak_bytes_in_use", device)

    def memory_reserved(self, device: Where = None) -> int:
        """Bytes that the plugin has taken from the device; 0 where it does not tell."""
        return self._told("bytes_reserved", device) or self.memory_allocated(device)

    def max_memory_reserved(self, device: Where = None) -> int:
        """The most bytes that the plugin had taken from the device; 0 where it does not tell."""
        return self._told("peak_bytes_reserved", device) or self.max_memory_allocated(device)

    def mem_get_info(self, device: Where = None) -> tuple[int, int]:
        """Free and all bytes; zeros where the plugin does not tell."""
        limit = self._told("bytes_limit", device)
        return max(limit - self.memory_allocated(device), 0), limit

    def memory_summary(self, device: Where = None, abbreviated: bool = False) -> str:
        """A table of what the plugin tells of a device's memory; `abbreviated` has no effect."""
        index = chosen.existing_index(device)
        client, found = chosen.chosen(index)
        return memory.summary(found, index, client.plugin.name)

    def reset_peak_memory_stats(self, device: Where = None) -> None:
        """Warn that peaks are not counted anew, and do nothing: PJRT cannot reset them."""
        client, _ = chosen.chosen(index_of(device))
        memory.warn_of_peaks(client.plugin.name)

    def reset_accumulated_memory_stats(self, device: Where = None) -> None:
        """Do nothing: no accumulated number of `torch.cuda` is among `memory_stats`."""

    def _told(self, name: str, device: Where) -> int:
        return memory.told(chosen.chosen(index_of(device))[1], name)

    def empty_cache(self) -> None:
        """Plugins manage their memory themselves: nothing to do."""


MODULE = DeviceModule()


def of_accelerator() -> dict[str, Callable[..., Any]]:
    """The functions of `torch.accelerator` that torch has no answer for on the device."""
    same = (
        "empty_cache",
        "max_memory_allocated",
        "max_memory_reserved",
        "memory_allocated",
        "memory_reserved",
        "memory_stats",
        "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
    )
    return {
        **{name: getattr(MODULE, name) for name in same},
        "current_device_idx": MODULE.current_device,
        "device_count": MODULE.device_count,
        "current_device_index": MODULE.current_device,
        "device_index": MODULE.device,
        "empty_host_cache": MODULE.empty_cache,
        "get_memory_info": MODULE.mem_get_info,
        "set_device_idx": MODULE.set_device,
        "set_device_index": MODULE.set_device,
    }


class _Current:
    def __init__(self, index: int) -> None:
        self._index = index
        self._before = index

    def __enter__(self) -> None:
        chosen.chosen(self._index)
        self._before = current.set_current_index(self._index)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        current.set_current_index(self._before)
