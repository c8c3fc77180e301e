"""Types of a function of JAX where sizes are known in calls only: symbols of JAX stand for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.jax_interop import symbols
from pjrt_bridge.torch_interop.foreign_functions import ArraySpec


def with_symbols(
    arguments: Sequence[ArraySpec], sizes: Sequence[Any]
) -> tuple[list[ArraySpec], dict[str, Any]]:
    """Arguments whose unknown sizes are symbols of JAX, and what each symbol stands for."""
    from jax import export

    unknown = {
        str(size): size
        for shape in (*(spec.shape for spec in arguments), sizes)
        for size in shape
        if type(size) is not int
    }
    if not unknown:
        return list(arguments), {}
    names = [f"d{index}" for index in range(len(unknown))]
    dims = dict(zip(unknown, export.symbolic_shape(", ".join(names)), strict=True))
    known = [
        spec._replace(shape=tuple(dims.get(str(size), size) for size in spec.shape))
        for spec in arguments
    ]
    return known, dict(zip(names, unknown.values(), strict=True))


def results_of(
    arguments: Sequence[ArraySpec],
    sizes: Sequence[Any],
    shapes: Callable[[Sequence[ArraySpec], Sequence[Any]], Sequence[Any]],
) -> list[ArraySpec]:
    """Types of results that JAX finds, with sizes as they were given."""
    joined = [*arguments, ArraySpec(tuple(sizes), dtypes.of("int64"))]
    known, values = with_symbols(joined, ())
    try:
        found = shapes(known[:-1], known[-1].shape)
    except Exception:
        if not values:
            raise
        # What JAX cannot decide for every size is decided for the sizes at hand.
        joined = [item._replace(shape=tuple(map(int, item.shape))) for item in joined]
        found = shapes(joined[:-1], joined[-1].shape)
    return [
        ArraySpec(
            tuple(
                size if type(size) is int else symbols.evaluate(str(size), values)
                for size in item.shape
            ),
            dtypes.from_numpy(item.dtype),
        )
        for item in found
    ]
