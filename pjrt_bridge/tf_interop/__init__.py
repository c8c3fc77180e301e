"""TensorFlow on PJRT: functions on plugins, mixed with TensorFlow's own kernels, and export."""

from typing import TYPE_CHECKING

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"pjrt_bridge.tf_interop needs TensorFlow, which cannot be imported ({error}); run: "
        "pip install 'pjrt-bridge[tf]'"
    ) from error

from pjrt_bridge.lazy_names import lazy_names
from pjrt_bridge.tf_interop.explain import explain
from pjrt_bridge.tf_interop.export import export
from pjrt_bridge.tf_interop.function import Function, function
from pjrt_bridge.tf_interop.tensors import as_tensor

if TYPE_CHECKING:
    from pjrt_bridge.tf_interop.torch_modules import from_torch
    from pjrt_bridge.tf_interop.torch_operators import torch_op

__all__ = ["Function", "as_tensor", "explain", "export", "from_torch", "function", "torch_op"]


# They import torch.
__getattr__, __dir__ = lazy_names(
    __name__, {"from_torch": "torch_modules", "torch_op": "torch_operators"}
)
