"""JAX on PJRT: plugins as backends of JAX, programs that JAX wrote, functions across frameworks.

JAX itself is imported when a function here needs it, and so is torch. What `jax.export` wrote is
read without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pjrt_bridge.jax_interop.backends import register
from pjrt_bridge.jax_interop.programs import from_exported, from_lowered

if TYPE_CHECKING:
    from pjrt_bridge.jax_interop.torch_operators import torch_op

__all__ = ["from_exported", "from_lowered", "register", "torch_op"]

_MODULES = {"torch_op": "torch_operators"}
"""Names whose modules import torch."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
