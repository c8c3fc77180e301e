"""Storages of the device that are freed and taken again."""

from __future__ import annotations

import pytest
import torch

from pjrt_bridge import errors
from pjrt_bridge.torch_interop.resident.storages.storage import contents_of


def test_a_freed_storage_is_written_again() -> None:
    x = torch.arange(6.0).to("pjrt")
    view = x.view(2, 3)
    storage = x.untyped_storage()
    storage.resize_(0)
    assert not contents_of(x).is_written
    assert view.untyped_storage().size() == view._typed_storage()._size() == 0
    storage.resize_(24)
    assert view.untyped_storage().size() == 24
    assert view._typed_storage()._size() == 6
    assert view.cpu().tolist() == [[0, 0, 0]] * 2
    x.copy_(torch.ones(6))
    assert view.sum().item() == 6


def test_another_size_is_refused() -> None:
    x = torch.arange(6.0).to("pjrt")
    with pytest.raises(errors.DeviceError, match="24 bytes on device pjrt:0 and the new size 8"):
        x.untyped_storage().resize_(8)
    assert x.sum().item() == 15


def test_storages_of_the_host_are_resized_as_ever() -> None:
    torch.ones(1).to("pjrt")
    storage = torch.ones(2).untyped_storage()
    storage.resize_(32)
    assert storage.nbytes() == 32
