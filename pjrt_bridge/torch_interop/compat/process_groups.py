"""Process groups of torch.distributed by the names that traced collective operations have."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def ranks(name: str) -> tuple[int, ...] | None:
    """The ranks of a process group; None where this process knows no group of the name."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    c10d: Any = dist.distributed_c10d
    try:
        return tuple(dist.get_process_group_ranks(c10d._resolve_process_group(name)))
    except (LookupError, RuntimeError, ValueError):
        return None


def rank() -> int:
    """The number of this process in torch.distributed."""
    return dist.get_rank()


def world_size() -> int:
    """The number of processes in torch.distributed."""
    return dist.get_world_size()
