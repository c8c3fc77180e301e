"""Which of torch's own devices have the memory of a plugin's devices."""

from __future__ import annotations

import torch

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.runtime import Client, Device

_CUDA, _ROCM, _ONE_API = 2, 10, 14
"""kDLCUDA, kDLROCM and kDLOneAPI of dlpack.h."""


def kind_shared_with(client: Client) -> str | None:
    """Torch's type of the devices whose memory the client's programs use; None: there is none."""
    found = client.platform_spec.dlpack_device_type
    if found == _ONE_API:
        return "xpu"
    # Torch calls AMD's GPUs by the name of NVIDIA's; a build has one of both.
    return "cuda" if found == (_CUDA if torch.version.hip is None else _ROCM) else None


def device_of(client: Client, kind: str, index: int) -> Device:
    """The client's device in whose memory tensors of a device of torch are.

    Raises:
        DeviceError: the client has no such device.
    """
    for device in client.devices:
        if device.local_hardware_id == index:
            return device
    raise DeviceError(
        f"found tensors on {kind}:{index}, expected them on a device of plugin "
        f"{client.plugin.name!r}, which has {', '.join(map(str, client.devices))}"
    )
