"""Values for tensors on the device, and their comparison with torch's own."""

from __future__ import annotations

import torch


def values(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    found = torch.randn(shape) * 3
    return found > 0 if dtype is torch.bool else found.to(dtype)


def assert_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal in everything that torch tells of a tensor."""
    assert found.device.type == "pjrt"
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.stride() == expected.stride()
    assert found.storage_offset() == expected.storage_offset()
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0, equal_nan=True)
