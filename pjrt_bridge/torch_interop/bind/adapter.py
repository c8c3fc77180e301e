"""TorchAdapter: how the execution core reads, makes and assigns PyTorch's tensors."""

from __future__ import annotations

import torch

from pjrt_bridge.runtime.dispatch.plans import Framework
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.runtime.transfers.host import HostArray
from pjrt_bridge.torch_interop.bind import threads
from pjrt_bridge.torch_interop.compat.devices import resizing
from pjrt_bridge.torch_interop.tensors import adopt, in_memory


class TorchAdapter:
    """See `pjrt_bridge.mixed.adapter.FrameworkAdapter`."""

    def exchange(self) -> Framework | None:
        """Reading and making torch's tensors in C; None for a torch that does not offer it."""
        found = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        if found is None:
            return None
        places = resizing.places()
        # A storage stays when its tensor is given other memory.
        return Framework(
            found,
            torch.Tensor,
            torch.Tensor.is_neg,
            _is_conjugated_or_negated,
            torch.Tensor.untyped_storage,
            None if places is None else places.numbers,
            torch.autograd.graph.increment_version,
            threads.idle_threads(),
        )

    def snapshot(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor over the memory in which the value is now."""
        return value.detach()

    def address(self, value: torch.Tensor) -> int:
        """Where the first element lies."""
        return value.data_ptr()

    def version(self, value: torch.Tensor) -> object:
        """What every in-place operation moves, except those on `tensor.data`.

        None for tensors of inference mode, which count no versions.
        """
        return None if value.is_inference() else (value.data_ptr(), value._version)

    def arranged(self, value: torch.Tensor, spec: ValueSpec) -> torch.Tensor:
        """The tensor, lying in memory as the program takes it; copied where it lies differently.

        Raises:
            DataError: a tensor of another shape.
        """
        dense = in_memory(value, spec)
        return dense if spec.inverse is None else dense.permute(spec.inverse)

    def host_array(self, value: torch.Tensor, spec: ValueSpec) -> HostArray:
        """The memory of `arranged`, as the row-major array that the program takes.

        Raises:
            DataError: a tensor of another shape.
        """
        dense, type = in_memory(value, spec), spec.memory
        return HostArray(dense.data_ptr(), type.dtype, type.shape, None, dense)

    def adopt(self, buffer: AnyBuffer, spec: ValueSpec) -> torch.Tensor:
        """A tensor over a buffer's memory, or over a copy; waits for the values."""
        return adopt(buffer, spec)

    def assign(self, target: torch.Tensor, value: torch.Tensor) -> None:
        """Give an argument its new value, which the program may have written there already."""
        if target.data_ptr() != value.data_ptr():
            # Entering the context takes longer than copying the cache of a layer.
            if torch.is_grad_enabled():
                with torch.no_grad():
                    target.copy_(value)
            else:
                target.copy_(value)
        elif not target.is_inference():
            torch.autograd.graph.increment_version(target)


ADAPTER = TorchAdapter()


def _is_conjugated_or_negated(value: torch.Tensor) -> bool:
    return value.is_conj() or value.is_neg()
