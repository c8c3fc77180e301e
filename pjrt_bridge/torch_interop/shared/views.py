"""Buffers over the memory of tensors: new ones, and those of weights, which stay."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, NamedTuple

import torch

from pjrt_bridge.runtime import Buffer, Client, Device
from pjrt_bridge.runtime.buffers import device_view
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.transfers.host import ALIGNMENT
from pjrt_bridge.torch_interop.shared.order import StreamOrder
from pjrt_bridge.torch_interop.tensors import in_memory


class _Kept(NamedTuple):
    tensor: weakref.ref[torch.Tensor]
    address: int
    buffer: Buffer | None


class TensorViews:
    """Buffers over the memory of tensors on one device.

    A buffer is made behind what torch has queued so far, and a program waits for the buffers that
    it is given. So it is enough that one of them is new in each call: those of tensors that are
    given again, such as weights, are kept as long as the tensor stays where it is.

    Args:
        client: the buffers'.
        device: where the memory is.
        order: of the streams there.
    """

    def __init__(self, client: Client, device: Device, order: StreamOrder) -> None:
        self._order = order
        self._client = client
        self._device = device
        self._kept: dict[int, _Kept] = {}

    def kept(self, tensor: torch.Tensor, spec: ValueSpec) -> Buffer | None:
        """The buffer that was kept of a tensor, lying as a program takes it; None: there is none.

        Args:
            tensor: the user's.
            spec: what the program takes.
        """
        found = self._kept.get(id(tensor))
        if found is None or found.tensor() is not tensor or found.address != tensor.data_ptr():
            return None
        buffer = found.buffer
        return buffer if buffer is not None and buffer.type == spec.memory else None

    def new(
        self, tensor: torch.Tensor, values: torch.Tensor, spec: ValueSpec, behind: int
    ) -> Buffer:
        """A buffer over the memory of a tensor, or of a copy that lies as a program takes it.

        It is kept where a tensor comes for the second time.

        Args:
            tensor: the user's.
            values: it, or a copy whose memory holds its values as they are.
            spec: what the program takes.
            behind: the stream of torch behind which the buffer is read; 0 where the plugin's
                comes behind it already.

        Raises:
            DataError: a tensor of another shape.
            PjrtError: the plugin refused.
        """
        address = tensor.data_ptr()
        dense = in_memory(values, spec)
        if dense.data_ptr() % ALIGNMENT:
            dense = dense.clone()
        if not self._order.plugin:
            # DLPack has no names for some element types.
            elements = dense.reshape(-1).view(torch.uint8)
            made = device_view.put(
                self._client, elements, self._device, copy=None, type=spec.memory
            )
        else:
            in_place = dense.data_ptr() == address
            if behind or not in_place:
                self._order.come_behind(behind or self._order.of_torch())
            made = device_view.view(
                self._client,
                self._device,
                spec.memory,
                dense.data_ptr(),
                stream=self._order.plugin,
                owner=dense,
            )
        if dense.data_ptr() == address:
            self._keep(tensor, address, made)
        return made

    def _keep(self, tensor: torch.Tensor, address: int, buffer: Buffer) -> None:
        key = id(tensor)
        before = self._kept.get(key)
        again = before is not None and before.tensor() is tensor and before.address == address
        reference = (
            before.tensor
            if before is not None and again
            else weakref.ref(tensor, partial(_forget, weakref.ref(self), key))
        )
        self._kept[key] = _Kept(reference, address, buffer if again else None)

    def forget(self, key: int, reference: Any) -> None:
        """Let go of the buffer of a tensor that is no more."""
        found = self._kept.get(key)
        if found is not None and found.tensor is reference:
            del self._kept[key]


def _forget(views: weakref.ref[TensorViews], key: int, reference: Any) -> None:
    held = views()
    if held is not None:
        held.forget(key, reference)
