"""Operations that move elements without computing (StableHLO spec, "Ops")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.builder.emitter import Emitter
from pjrt_bridge.stablehlo.builder.values import (
    Origin,
    PairBody,
    Repeats,
    Reverses,
    Value,
    check_length,
    paired,
    scalars,
)
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import checked_methods


@checked_methods
class ShapeOps(Emitter):
    """Reshapes, slices, padding, gather and scatter."""

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The elements in row-major order in another shape of the same size."""
        result = TensorType(tuple(shape), x.dtype)
        value = self._emit_one("stablehlo.reshape", (x,), None, result)
        return replace(value, origin=Origin(x, None))

    def broadcast_in_dim(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        """Broadcast: dimension i of x (equal, or 1) becomes dimension `dims[i]` of the shape."""
        attributes = {"broadcast_dimensions": self._dims(dims)}
        result = TensorType(tuple(shape), x.dtype)
        value = self._emit_one("stablehlo.broadcast_in_dim", (x,), attributes, result)
        return replace(value, repeats=Repeats(x, tuple(dims)))

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        """Dimension i of the result is dimension `permutation[i]` of x.

        What is transposed twice in the same way is transposed once: XLA's CPU compiler ends the
        process where two such transposes of a batched product are results of a program.
        """
        key = (id(self._handle("stablehlo.transpose", 0, x)), tuple(permutation))
        made = self._transposed.get(key)
        if made is None or made._scope not in self._scopes:
            attributes = {"permutation": self._dims(permutation)}
            value = self._emit_one("stablehlo.transpose", (x,), attributes)
            made = replace(value, origin=Origin(x, tuple(permutation)))
            self._transposed[key] = made
        return made

    def slice(
        self,
        x: Value,
        start: Sequence[int],
        limit: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> Value:
        """Elements `start[i]:limit[i]:strides[i]` per dimension (strides default to 1)."""
        steps = [1] * x.rank if strides is None else strides
        self._check_lengths("stablehlo.slice", x.rank, start=start, limit=limit, strides=steps)
        attributes = {
            "start_indices": self._dims(start),
            "limit_indices": self._dims(limit),
            "strides": self._dims(steps),
        }
        return self._emit_one("stablehlo.slice", (x,), attributes)

    def pad(
        self,
        x: Value,
        value: Value,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int] | None = None,
    ) -> Value:
        """Add `value` (a scalar) before, after and between elements.

        Args:
            x: operand.
            value: scalar of x's element type.
            low: elements before, per dimension; negative numbers take elements away.
            high: elements after, per dimension; negative numbers take elements away.
            interior: elements between two neighbours, per dimension, >= 0.
        """
        between = [0] * x.rank if interior is None else interior
        self._check_lengths("stablehlo.pad", x.rank, low=low, high=high, interior=between)
        attributes = {
            "edge_padding_low": self._dims(low),
            "edge_padding_high": self._dims(high),
            "interior_padding": self._dims(between),
        }
        return self._emit_one("stablehlo.pad", (x, value), attributes)

    @staticmethod
    def _check_lengths(op: str, rank: int, **counts: Sequence[int]) -> None:
        # MLIR reads as many numbers as there are dimensions, whether they are there or not.
        for name, items in counts.items():
            check_length(op, name, items, rank)

    def concatenate(self, xs: Sequence[Value], dim: int) -> Value:
        """The operands one after the other along a dimension."""
        if not xs:
            raise ProgramError("stablehlo.concatenate: needs at least one operand")
        return self._emit_one("stablehlo.concatenate", xs, {"dimension": self._int(dim)})

    def reverse(self, x: Value, dims: Sequence[int]) -> Value:
        """X backwards along the dimensions; what was reversed so is as it was before."""
        own = frozenset(dims)
        if x.reverses is not None and x.reverses.dims == own:
            return x.reverses.value
        made = self._emit_one("stablehlo.reverse", (x,), {"dimensions": self._dims(dims)})
        return replace(made, reverses=Reverses(x, own))

    def dynamic_slice(self, x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
        """A window of the given sizes at run-time starts, which are clamped into x.

        Args:
            x: operand.
            starts: one integer scalar per dimension.
            sizes: elements per dimension.
        """
        attributes = {"slice_sizes": self._dims(sizes)}
        return self._emit_one("stablehlo.dynamic_slice", (x, *starts), attributes)

    def dynamic_update_slice(self, x: Value, update: Value, starts: Sequence[Value]) -> Value:
        """X with the window at run-time starts (clamped into x) replaced by `update`."""
        return self._emit_one("stablehlo.dynamic_update_slice", (x, update, *starts))

    def gather(
        self,
        operand: Value,
        indices: Value,
        *,
        offset_dims: Sequence[int],
        collapsed_slice_dims: Sequence[int],
        start_index_map: Sequence[int],
        index_vector_dim: int,
        slice_sizes: Sequence[int],
        operand_batching_dims: Sequence[int] = (),
        start_indices_batching_dims: Sequence[int] = (),
        indices_are_sorted: bool = False,
    ) -> Value:
        """Collect slices of the operand at run-time indices (StableHLO spec, "gather")."""
        numbers = bindings.load().stablehlo.GatherDimensionNumbers.get(
            offset_dims=list(offset_dims),
            collapsed_slice_dims=list(collapsed_slice_dims),
            operand_batching_dims=list(operand_batching_dims),
            start_indices_batching_dims=list(start_indices_batching_dims),
            start_index_map=list(start_index_map),
            index_vector_dim=index_vector_dim,
            context=self._context,
        )
        attributes = {
            "dimension_numbers": numbers,
            "slice_sizes": self._dims(slice_sizes),
            "indices_are_sorted": self._bool(indices_are_sorted),
        }
        return self._emit_one("stablehlo.gather", (operand, indices), attributes)

    def scatter(
        self,
        operands: Sequence[Value],
        indices: Value,
        updates: Sequence[Value],
        body: PairBody,
        *,
        update_window_dims: Sequence[int],
        inserted_window_dims: Sequence[int],
        scatter_dims_to_operand_dims: Sequence[int],
        index_vector_dim: int,
        input_batching_dims: Sequence[int] = (),
        scatter_indices_batching_dims: Sequence[int] = (),
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> tuple[Value, ...]:
        """Combine updates into copies of the operands at run-time indices.

        Args:
            operands: tensors of one shape.
            indices: integer tensor; out-of-bounds indices are ignored.
            updates: one tensor per operand.
            body: from (current scalars, update scalars) to the new scalars.
            update_window_dims: StableHLO spec, "scatter", for this and the following.
            inserted_window_dims: operand dimensions that the updates lack.
            scatter_dims_to_operand_dims: operand dimension of each index component.
            index_vector_dim: dimension of `indices` that holds an index vector.
            input_batching_dims: batch dimensions of the operands.
            scatter_indices_batching_dims: the same of `indices`.
            indices_are_sorted: promise that the indices are sorted.
            unique_indices: promise that no two are equal.
        """
        op = "stablehlo.scatter"
        check_length(op, "updates", updates, len(operands))
        numbers = bindings.load().stablehlo.ScatterDimensionNumbers.get(
            update_window_dims=list(update_window_dims),
            inserted_window_dims=list(inserted_window_dims),
            input_batching_dims=list(input_batching_dims),
            scatter_indices_batching_dims=list(scatter_indices_batching_dims),
            scattered_dims_to_operand_dims=list(scatter_dims_to_operand_dims),
            index_vector_dim=index_vector_dim,
            context=self._context,
        )
        attributes: dict[str, Any] = {
            "scatter_dimension_numbers": numbers,
            "indices_are_sorted": self._bool(indices_are_sorted),
            "unique_indices": self._bool(unique_indices),
        }
        region = paired(scalars(operands), body)
        types = [operand.type for operand in operands]
        return self._emit_with(op, (*operands, indices, *updates), [region], attributes, types)
