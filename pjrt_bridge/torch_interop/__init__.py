"""PyTorch on PJRT: the `pjrt` backend of torch.compile, and what became of what it compiled."""

from pjrt_bridge.torch_interop.explain import explain, explain_with
from pjrt_bridge.torch_interop.records import compiled_graphs

__all__ = ["compiled_graphs", "explain", "explain_with"]
