"""TensorFlow's tensors, as the execution core uses them."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.errors import DataError
from pjrt_bridge.runtime import Buffer
from pjrt_bridge.runtime.dispatch.plans import Capsules
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.runtime.transfers.host import HostArray
from pjrt_bridge.tf_interop import compat
from pjrt_bridge.tf_interop.tensors import memory_of, tensor_over


class TensorFlowAdapter:
    """See `pjrt_bridge.mixed.adapter.FrameworkAdapter`. Eager tensors do not change."""

    def exchange(self) -> Capsules:
        """How TensorFlow's tensors are read and made in C."""
        return compat.capsules()

    def snapshot(self, value: Any) -> Any:
        """The tensor itself."""
        return value

    def address(self, value: Any) -> int:
        """Where the first element lies."""
        return memory_of(value).address

    def version(self, value: Any) -> object:
        """None: that a variable was given another tensor does not show in its value."""
        return None

    def arranged(self, value: Any, spec: ValueSpec) -> Any:
        """The tensor itself: all are row-major."""
        return value

    def host_array(self, value: Any, spec: ValueSpec) -> HostArray:
        """The memory of a tensor.

        Raises:
            DataError: another shape or element type than promised.
            UnsupportedDtype: a tensor that no device takes.
        """
        host = memory_of(value)
        if (host.shape, host.dtype) != (spec.type.shape, spec.type.dtype):
            raise DataError(
                f"found a tensor of shape {host.shape} and type {host.dtype}, expected {spec.type}"
            )
        return host

    def adopt(self, buffer: AnyBuffer, spec: ValueSpec) -> Any:
        """A tensor over a buffer's memory, or over a copy; waits for the values."""
        assert isinstance(buffer, Buffer)
        return tensor_over(buffer)

    def assign(self, target: Any, value: Any) -> None:
        """Give a variable, by its handle, a new value, which shares the program's memory."""
        compat.assign(target, value)


ADAPTER = TensorFlowAdapter()
