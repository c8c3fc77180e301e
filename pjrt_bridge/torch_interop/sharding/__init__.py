"""Sharded tensors: one torch tensor of device `pjrt`, with an array on each device of a mesh.

A sharded tensor has its whole shape, and its storage holds a buffer for each device. Graphs of
torch.compile, and operators, over such tensors run on all devices of the mesh; Shardy divides their
programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt_bridge.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt_bridge.torch_interop.sharding.constraint import OPEN, shard_constraint
    from pjrt_bridge.torch_interop.sharding.drawing import visualize
    from pjrt_bridge.torch_interop.sharding.marking import (
        full,
        mark_sharding,
        sharding_of,
        shards,
    )
    from pjrt_bridge.torch_interop.sharding.mesh import Mesh
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

# The options of the backend are below what marks tensors.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "OPEN": "constraint",
        "Mesh": "mesh",
        "full": "marking",
        "fully_shard": "modules",
        "parallelize": "modules",
        "mark_sharding": "marking",
        "shard_constraint": "constraint",
        "sharding_of": "marking",
        "shards": "marking",
        "visualize": "drawing",
    },
)
