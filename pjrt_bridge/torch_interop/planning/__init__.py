"""Planning for meshes of devices that are not present: what fits, and what limits its speed.

`trace` takes a model on the device `meta`, `compile_for` compiles it for a topology over a mesh and
gives a `Budget`: memory, cost and collective operations of each device.
"""

from pjrt_bridge.torch_interop.planning.api import compile_for, trace
from pjrt_bridge.torch_interop.planning.traced import TracedModel

__all__ = ["TracedModel", "compile_for", "trace"]
