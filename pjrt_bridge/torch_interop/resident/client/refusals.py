"""Errors for what the device does not support, which say what to do instead."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.named_device.naming import NAME


def pin_memory(tensor: torch.Tensor, device: torch.device | None = None) -> NoReturn:
    """`aten._pin_memory`, also of a DataLoader: torch asks C++ of the device for such memory.

    Raises:
        DeviceError: always.
    """
    raise DeviceError(
        f"torch has no way to pin host memory for device {NAME!r}: leave pin_memory out, "
        f"DataLoader(..., pin_memory=False) too; .to({NAME!r}, non_blocking=True) takes any tensor"
    )


def need_unpinned(pin_memory: bool | None) -> None:
    """Refuse to make a tensor of the device in pinned memory, as torch does for its own devices.

    Raises:
        RuntimeError: it is to be pinned.
    """
    if pin_memory:
        raise RuntimeError(
            f"Only dense CPU tensors can be pinned, found pin_memory=True for a tensor on device "
            f"{NAME!r}: leave it out"
        )


def other_layout(op: OpOverload, /, *args: Any, **kwargs: Any) -> NoReturn:
    """Any operator on nested or quantized tensors of the device.

    Raises:
        DeviceError: always.
    """
    raise DeviceError(
        f"{op}: device {NAME!r} has no nested tensors of layout torch.strided (layout=torch.jagged "
        "is taken) and no quantized ones: keep such tensors on the host"
    )


def dlpack(tensor: torch.Tensor) -> NoReturn:
    """`__dlpack__` and `__dlpack_device__`, by which frameworks take each other's tensors.

    Raises:
        BufferError: always; this is what DLPack asks for.
    """
    raise BufferError(
        f"a tensor of shape {tuple(tensor.shape)} on device {tensor.device} has no memory that "
        "DLPack describes: pass tensor.cpu(), or, for a view without a copy where the plugin uses "
        "host memory, pjrt_bridge.torch_interop.device.buffer_of(tensor)"
    )


def no_nested_tensor(tensor: torch.Tensor, mask: torch.Tensor) -> bool:
    """`aten._nested_tensor_from_mask_left_aligned`: whether a nested tensor can be made of a mask.

    `nn.TransformerEncoder` asks before it makes one, and otherwise goes on with the mask.
    """
    return False


def need_no_overlap(tensor: torch.Tensor) -> None:
    """Refuse to write into a tensor that repeats elements, as PyTorch does.

    Raises:
        RuntimeError: it has a stride of 0.
    """
    if repeats_elements(tensor):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please clone() the tensor before performing the operation."
        )


def repeats_elements(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor lie in one place: it has a stride of 0."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() > 1 and any(not step and size > 1 for size, step in sizes)


def need_strides(tensor: torch.Tensor) -> None:
    """Refuse a tensor that has no strides.

    Raises:
        DeviceError: it is of such a layout.
    """
    if tensor.layout != torch.strided:
        raise DeviceError(
            f"a tensor of shape {tuple(tensor.shape)} and layout {tensor.layout} cannot be on "
            f"device {NAME!r}, which has layout torch.strided and sparse ones: make it from a "
            "tensor of the host (.cpu()), and leave it there"
        )
