"""Random numbers and windows, whose operators torch cannot write into a graph."""

from __future__ import annotations

from typing import Any

import torch

from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.compat.decomposed.integer_draws import drawn_between
from pjrt_bridge.torch_interop.device.operators.host_calls import run_on_host
from pjrt_bridge.torch_interop.device.operators.operators import call
from pjrt_bridge.torch_interop.resident.client.chosen import existing_index
from pjrt_bridge.torch_interop.resident.storages.factories import resize


def random_integers(
    op: OpOverload, tensor: torch.Tensor, *limits: int | None, generator: Any = None
) -> torch.Tensor:
    """`aten.random_`: integers between limits, in place."""
    between = drawn_between(tensor.dtype, *limits)
    if between is None or generator is not None:
        index = tensor.device.index or 0
        found: torch.Tensor = run_on_host(
            op, (tensor, *limits), {"generator": generator}, index, None
        )
        return found
    if not tensor.numel():
        return tensor
    drawn = call(torch.ops.aten.randint_like.low_dtype, tensor, *between)
    return tensor.copy_(drawn)


def random_permutation(n: int, *, generator: Any = None, out: torch.Tensor) -> torch.Tensor:
    """`aten.randperm.generator_out`."""
    if generator is not None:
        index = out.device.index or 0
        op = torch.ops.aten.randperm.generator_out
        found: torch.Tensor = run_on_host(
            op, (n,), {"generator": generator, "out": out}, index, None
        )
        return found
    drawn = call(torch.ops.aten.randperm.default, n, dtype=out.dtype, device=out.device)
    return resize(out, (n,)).copy_(drawn)


def kaiser_window(
    op: OpOverload, length: int, *args: Any, device: torch.device | None = None, **options: Any
) -> torch.Tensor:
    """`aten.kaiser_window`: torch composes it with a kernel that it has for its own devices."""
    index = existing_index(device)
    found: torch.Tensor = run_on_host(op, (length, *args), options, index, None)
    return found
