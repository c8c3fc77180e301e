"""What torch cannot have on the device says what to do in its place."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.utils.data import DataLoader

from pjrt_bridge.errors import DeviceError


def test_pinned_memory() -> None:
    with pytest.raises(DeviceError, match="leave pin_memory out"):
        torch.ones(3).pin_memory()
    rows = torch.arange(4.0)
    with pytest.raises(DeviceError, match=r"DataLoader\(..., pin_memory=False\)"):
        list(DataLoader(rows, batch_size=2, pin_memory=True))  # type: ignore[arg-type]
    batches = [row.to("pjrt", non_blocking=True) for row in DataLoader(rows, batch_size=2)]  # type: ignore[arg-type]
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]


def test_layouts_without_strides() -> None:
    x = torch.eye(3, device="pjrt")
    with (
        pytest.warns(UserWarning, match="_to_sparse"),
        pytest.raises(DeviceError, match=r"layout torch\.sparse_coo cannot be on device 'pjrt'"),
    ):
        x.to_sparse()
    assert x.sum().item() == 3


def test_gradients_of_sparse_layers() -> None:
    layer = torch.nn.Embedding(5, 3, sparse=True).to("pjrt")
    loss = layer(torch.tensor([1], device="pjrt")).sum()
    with pytest.raises(DeviceError, match=r"layout torch\.strided alone.*leave sparse=True out"):
        loss.backward()


def test_a_mistake_is_raised_and_not_logged() -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(handler)
    try:
        x = torch.ones(3, 4, device="pjrt")
        with pytest.raises(RuntimeError, match="3x4 and 3x4"):
            x @ x
    finally:
        logger.removeHandler(handler)
    assert not records
