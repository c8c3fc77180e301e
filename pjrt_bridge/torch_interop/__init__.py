"""PyTorch on PJRT: the `pjrt` backend of torch.compile, reports of what it compiled, export.

`device` is torch.device("pjrt"): tensors that live on a plugin's device.
"""

from typing import TYPE_CHECKING

from pjrt_bridge.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt_bridge.torch_interop.composites import composite
    from pjrt_bridge.torch_interop.custom_calls import custom_call
    from pjrt_bridge.torch_interop.explaining import explain, explain_with
    from pjrt_bridge.torch_interop.exporting.api import export
    from pjrt_bridge.torch_interop.foreign.custom_op import custom_op
    from pjrt_bridge.torch_interop.ledger import compiled_graphs

__all__ = [
    "compiled_graphs",
    "composite",
    "custom_call",
    "custom_op",
    "explain",
    "explain_with",
    "export",
]

# Torch imports this package when it is imported itself, to know the device (`device.autoload`).
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "compiled_graphs": "ledger",
        "composite": "composites",
        "custom_call": "custom_calls",
        "custom_op": "foreign.custom_op",
        "explain": "explaining",
        "explain_with": "explaining",
        "export": "exporting.api",
    },
)
