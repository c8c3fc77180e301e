"""TensorFlow on PJRT: functions on plugins, mixed with TensorFlow's own kernels, and export."""

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"pjrt_bridge.tf_interop needs TensorFlow, which cannot be imported ({error}); run: "
        "pip install 'pjrt-bridge[tf]'"
    ) from error

from pjrt_bridge.tf_interop.explain import explain
from pjrt_bridge.tf_interop.export import export
from pjrt_bridge.tf_interop.function import Function, function
from pjrt_bridge.tf_interop.tensors import as_tensor

__all__ = ["Function", "as_tensor", "explain", "export", "function"]
