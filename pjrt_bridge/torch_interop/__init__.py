"""PyTorch on PJRT: the `pjrt` backend of torch.compile, reports of what it compiled, export.

`device` is torch.device("pjrt"): tensors that live on a plugin's device.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pjrt_bridge.torch_interop.custom_calls import custom_call
    from pjrt_bridge.torch_interop.explaining import explain, explain_with
    from pjrt_bridge.torch_interop.exporting.api import export
    from pjrt_bridge.torch_interop.foreign.custom_op import custom_op
    from pjrt_bridge.torch_interop.ledger import compiled_graphs

__all__ = ["compiled_graphs", "custom_call", "custom_op", "explain", "explain_with", "export"]

_MODULES = {
    "compiled_graphs": "ledger",
    "custom_call": "custom_calls",
    "custom_op": "foreign.custom_op",
    "explain": "explaining",
    "explain_with": "explaining",
    "export": "exporting.api",
}


def __getattr__(name: str) -> Any:
    # Torch imports this package when it is imported itself, to know the device (`device.autoload`).
    # No module may have one of these names: it would be found in its place once it is imported.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
