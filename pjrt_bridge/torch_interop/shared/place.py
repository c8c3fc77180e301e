"""Graphs over tensors of torch's own accelerators; see `pjrt_bridge.torch_interop.shared`."""

from __future__ import annotations

import numpy as np
import torch

from pjrt_bridge.runtime import Buffer, Client
from pjrt_bridge.runtime.buffers import putting
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.runtime.transfers import device_dlpack
from pjrt_bridge.runtime.transfers.host import describe
from pjrt_bridge.torch_interop.passes.padding.memory import PaddingMemory
from pjrt_bridge.torch_interop.resident.graphs.border import GivenTensor
from pjrt_bridge.torch_interop.shared.kinds import device_of
from pjrt_bridge.torch_interop.shared.order import StreamOrder
from pjrt_bridge.torch_interop.shared.views import TensorViews
from pjrt_bridge.torch_interop.tensors import adopt, over, torch_dtype


class SharedArgument(GivenTensor):
    """A tensor of an accelerator that a graph is given.

    Args:
        given: the user's.
        call: that gives it.
        addressed: host segments need the elements around it, too.
    """

    __slots__ = ("_call",)

    def __init__(self, given: torch.Tensor, call: SharedCall, *, addressed: bool) -> None:
        super().__init__(given, addressed=addressed)
        self._call = call

    def buffer_as(self, spec: ValueSpec) -> AnyBuffer:
        """A buffer over its elements, lying as a program takes them."""
        return self._call.buffer(self.given, self.values, spec)

    def tensor(self) -> torch.Tensor:
        """A copy in host memory; waits for the values."""
        if self.host is None:
            self.host = _with_surroundings(self.given) if self._addressed else to_host(self.values)
        return self.host

    def replace(self, buffer: AnyBuffer, spec: ValueSpec) -> None:
        """Copy a program's result into the tensor, behind torch's queued work."""
        with torch.no_grad():
            self.given.copy_(self._call.result(buffer, spec))
        self.replaced = True


class SharedPlace:
    """A device of torch whose memory programs use.

    Args:
        client: of the programs.
        kind: torch's type of the device.
        index: of the device.

    Attributes:
        device: torch's.
        client: see above.
        on: the client's device.
        order: of torch's work there and of the plugin's.
        views: buffers over its tensors.
        dlpack_type: DLDeviceType of the device.

    Raises:
        DeviceError: the client has no such device.
    """

    def __init__(self, client: Client, kind: str, index: int) -> None:
        self.device = torch.device(kind, index)
        self.client = client
        self.dlpack_type = client.platform_spec.dlpack_device_type or 0
        self.on = device_of(client, kind, index)
        self.order = StreamOrder(client, self.on)
        self.views = TensorViews(client, self.on, self.order)

    def of_call(self) -> SharedCall:
        """The device as one call of a graph uses it."""
        return SharedCall(self)


class SharedCall:
    """See `Place`: what is made here is in the order of the call among torch's queued work."""

    def __init__(self, place: SharedPlace) -> None:
        self._place = place
        self._stream = place.order.of_torch() if place.order.plugin else 0
        self._is_behind = False

    def given(self, tensor: torch.Tensor, *, addressed: bool) -> GivenTensor:
        """A tensor as an argument of the graph."""
        return SharedArgument(tensor, self, addressed=addressed)

    def buffer(self, given: torch.Tensor, values: torch.Tensor, spec: ValueSpec) -> Buffer:
        """A buffer over a tensor's elements, lying as a program takes them.

        The first of a call is a new one, for which the program waits until torch's queue has come
        so far.

        Args:
            given: the user's tensor.
            values: it, or a copy whose memory holds its values as they are.
            spec: what the program takes.
        """
        views = self._place.views
        if not spec.nbytes:
            nothing = describe(np.empty(spec.memory.shape, spec.memory.dtype.numpy))
            return putting.put_host(self._place.client, nothing, self._place.on)
        kept = views.kept(given, spec) if self._is_behind else None
        if kept is None:
            kept = views.new(given, values, spec, 0 if self._is_behind else self._stream)
            self._is_behind = True
        return kept

    def result(self, buffer: AnyBuffer, spec: ValueSpec) -> torch.Tensor:
        """A tensor over a result, which is there for what torch queues from now on."""
        shape, dtype = spec.type.shape, torch_dtype(spec.type.dtype)
        if 0 in shape:
            return torch.empty_strided(shape, spec.strides, dtype=dtype, device=self._place.device)
        if not isinstance(buffer, Buffer) or buffer.dtype.dlpack is None:
            # DLPack has no name for its element type.
            return self.to_device(adopt(buffer, spec))
        found: torch.Tensor
        if self._stream:
            place = (self._place.dlpack_type, self._place.on.local_hardware_id)
            capsule = device_dlpack.export(buffer, place, stream=self._stream, versioned=False)
            found = torch.utils.dlpack.from_dlpack(capsule)
        else:
            found = torch.utils.dlpack.from_dlpack(buffer)
        if found.shape == shape and found.stride() == spec.strides:
            return found
        return over(found.untyped_storage(), found, 0, shape, spec.strides)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of a copy of a host tensor's elements."""
        return tensor.to(self._place.device)

    def write(self, target: GivenTensor, elements: torch.Tensor) -> None:
        """Write a host tensor's elements into the user's tensor."""
        with torch.no_grad():
            target.given.copy_(elements)


class SharedMemory(PaddingMemory):
    """Padding of graphs over such tensors: torch copies them there.

    Args:
        kind: torch's type of the device.
        index: of the device.
    """

    def __init__(self, kind: str, index: int) -> None:
        self.device = torch.device(kind, index)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor of a copy of a tensor's elements, with its strides if it is dense."""
    return tensor.detach().to("cpu")


def _with_surroundings(tensor: torch.Tensor) -> torch.Tensor:
    """The same, where it is in a copy of all that its storage holds."""
    made = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
        tensor.untyped_storage().to(device="cpu")
    )
    # Bits that torch applies when it reads: the host's copy has the values that they stand for.
    if tensor.is_conj():
        made.conj_physical_()
    if tensor.is_neg():
        made.neg_()
    return made.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
