"""JAX on PJRT: plugins as backends of JAX, programs that JAX wrote, functions across frameworks.

JAX itself is imported when a function here needs it, and so is torch. What `jax.export` wrote is
read without them.
"""

from typing import TYPE_CHECKING

from pjrt_bridge.jax_interop.backends import register
from pjrt_bridge.jax_interop.programs import from_exported, from_lowered
from pjrt_bridge.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt_bridge.jax_interop.torch_modules import from_torch
    from pjrt_bridge.jax_interop.torch_operators import torch_op

__all__ = ["from_exported", "from_lowered", "from_torch", "register", "torch_op"]

# They import torch.
__getattr__, __dir__ = lazy_names(
    __name__, {"from_torch": "torch_modules", "torch_op": "torch_operators"}
)
