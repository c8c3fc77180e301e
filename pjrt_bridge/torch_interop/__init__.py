"""PyTorch on PJRT: the `pjrt` backend of torch.compile, what became of what it compiled, export."""

from pjrt_bridge.torch_interop.custom_calls import custom_call
from pjrt_bridge.torch_interop.explain import explain, explain_with
from pjrt_bridge.torch_interop.exporting.api import export
from pjrt_bridge.torch_interop.ledger import compiled_graphs

__all__ = ["compiled_graphs", "custom_call", "explain", "explain_with", "export"]
