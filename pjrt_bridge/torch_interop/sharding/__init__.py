"""Sharded tensors: one torch tensor of device `pjrt`, with an array on each device of a mesh.

A sharded tensor has its whole shape, and its storage holds a buffer for each device. Graphs of
torch.compile, and operators, over such tensors run on all devices of the mesh; Shardy divides their
programs.
"""

from __future__ import annotations

from pjrt_bridge.torch_interop.meshes.constraint import OPEN, shard_constraint
from pjrt_bridge.torch_interop.meshes.mesh import Mesh
from pjrt_bridge.torch_interop.sharding.drawing import visualize
from pjrt_bridge.torch_interop.sharding.marking import (
    full,
    mark_sharding,
    sharding_of,
    shards,
)
from pjrt_bridge.torch_interop.sharding.modules import fully_shard, parallelize

__all__ = [
    "OPEN",
    "Mesh",
    "full",
    "fully_shard",
    "mark_sharding",
    "parallelize",
    "shard_constraint",
    "sharding_of",
    "shards",
    "visualize",
]
