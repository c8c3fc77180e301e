"""The order of torch's work on a device and of the plugin's, without a wait on the host."""

from __future__ import annotations

import torch

from pjrt_bridge.runtime import Client, Device
from pjrt_bridge.runtime.transfers import device_dlpack

_LEGACY_DEFAULT = 1
"""CU_STREAM_LEGACY: CUDA's default stream, which torch calls 0."""


class StreamOrder:
    """The streams of torch and of a plugin on one device.

    Args:
        client: of the plugin.
        device: the client's.

    Attributes:
        plugin: the stream behind whose work the plugin's programs read what they are given; 0 where
            the order has to be made through DLPack.
    """

    def __init__(self, client: Client, device: Device) -> None:
        self._events = client.platform_spec.stream_events
        found = device_dlpack.plugin_stream(client, device)
        self.plugin = 0 if self._events is None or found is None else found
        self._number = device.local_hardware_id

    def of_torch(self) -> int:
        """The stream on which torch's work is queued now, in this thread."""
        found: int = torch.cuda.current_stream(self._number).cuda_stream
        return found or _LEGACY_DEFAULT

    def come_behind(self, stream: int) -> None:
        """Let what programs are given from now on be read behind all that is on a stream now."""
        assert self._events is not None
        self._events.follow(self._number, self.plugin, stream)
