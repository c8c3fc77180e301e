"""Random operators of DTensor on a device whose numbers the host's generator decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

_SEEDS = 2**62


def draw_by_shard(device: str) -> None:
    """Have them draw the same numbers in replicas of a shard, and other numbers in other shards.

    Torch changes the offset in the state of CUDA's generator for that. Here one number is drawn
    from the generator, the same in every process, if the processes have the same seed. With that
    and the position of its shard each process seeds its operator, so generators stay the same.

    Args:
        device: the type of the device.
    """
    if not dist.is_available():
        return
    from torch.distributed.tensor import _random

    tracker: Any = _random.OffsetBasedRNGTracker
    before = tracker._distribute_region

    @contextmanager
    def seeded(self: Any, spec: Any, generator: Any) -> Iterator[None]:
        drawn = torch.randint(_SEEDS, (), generator=generator, device="cpu").item()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(drawn) + _position(spec))
            yield

    @wraps(before)
    def region(self: Any, spec: Any, generator: Any = None) -> Any:
        if self._device.type == device and self.distribute_region_enabled:
            return seeded(self, spec, generator)
        return before(self, spec, generator)

    def _position(spec: Any) -> int:
        coordinate = spec.mesh.get_coordinate() or [0] * spec.mesh.ndim
        return int(_random._calc_shard_linear_idx(*_random._calc_shard_info(coordinate, spec)))

    tracker._distribute_region = region
