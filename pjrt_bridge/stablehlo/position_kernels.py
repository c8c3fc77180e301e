"""Kernels that read and write at positions that are computed; a part of `kernels.Kernels`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.constant_positions import (
    constant_positions,
    read_runs,
    runs_of,
    windows_of,
)
from pjrt_bridge.stablehlo.kernel_attributes import Assembly, Combination


class PositionKernels:
    """The portable kernels of rows and elements at positions."""

    def sums_of_bags(
        self,
        b: Builder,
        table: Value,
        positions: Value,
        ends: Value,
        factors: Value | None,
        *,
        mean: bool,
        ignored: int,
    ) -> Value | None:
        """Emit the sums of bags of a table's rows as one kernel; None where there is none, as here.

        Args:
            b: the builder to emit into.
            table: (rows, width), floats; half precision is summed in float32 and rounded once.
            positions: (count,), integers.
            ends: (bags + 1,), int64, ascending. Bag i has the positions from `ends[i]` up to
                `ends[i + 1]`.
            factors: of the rows, (count,); None: ones.
            mean: sums are divided by how many rows they have.
            ignored: a position that is left out.

        Returns:
            (bags, width), of the table's element type; 0 for a bag of no row.
        """
        return None

    def sort(
        self,
        b: Builder,
        x: Value,
        dim: int,
        *,
        descending: bool,
        positions: DType,
        total: bool = False,
        first: int | None = None,
    ) -> tuple[Value, Value] | None:
        """Emit a sort along a dimension as one kernel; None where there is none, as here.

        Equal elements keep their order; -0.0 and 0.0 are equal, and all NaN, which are larger than
        any number.

        Args:
            b: the builder to emit into.
            x: booleans, integers or real floats, that has dimensions.
            dim: along which it goes.
            descending: whether the largest elements come first.
            positions: the type of positions, int32 or int64.
            total: floats are in the total order of their bits: those with the sign before those
                without, NaN of each at its end.
            first: how many elements from the first one on are read; None: all.

        Returns:
            The elements in order, and the positions that they had.
        """
        return None

    def first_extremes(
        self, b: Builder, x: Value, dim: int, *, largest: bool, positions: DType
    ) -> Value | None:
        """Emit the first positions of extremes as one kernel; None where there is none, as here.

        -0.0 and 0.0 are equal; a NaN is both the largest and the smallest.

        Args:
            b: the builder to emit into.
            x: booleans, integers or real floats, that has dimensions.
            dim: along which they are; it has elements.
            largest: whether the largest elements are looked for, or the smallest.
            positions: the type of positions, int32 or int64.

        Returns:
            The positions; the dimension is dropped.
        """
        return None

    def assemble(self, b: Builder, assembly: Assembly, sources: Sequence[Value]) -> Value | None:
        """Emit an array whose elements are copied from others as one kernel; here None.

        Args:
            b: the builder to emit into.
            assembly: the array.
            sources: what it is copied from, row-major, of one element type.

        Returns:
            The array; None: the operations stay as they are.
        """
        return None

    def gather_along(self, b: Builder, x: Value, dim: int, index: Value) -> Value:
        """Emit the elements of `x` at positions along a dimension.

        `out[i][j] = x[index[i][j]][j]` for dim 0. A position out of range is moved to the nearest
        that is not.

        Args:
            b: the builder to emit into.
            x: any tensor that has dimensions.
            dim: along which positions are.
            index: integers, of the shape of `x` but for `dim`; or 1 in dimensions along which
                positions are the same.
        """
        positions = constant_positions(index, x.shape[dim])
        if positions is not None and positions.size == index.shape[dim]:
            runs = runs_of(positions.reshape(-1))
            if runs is not None:
                return read_runs(b, x, dim, runs)
            windows = windows_of(x, dim, positions.reshape(-1))
            made = None if windows is None else self.assemble(b, windows, [x])
            if made is not None:
                return b.reshape(made, (*x.shape[:dim], positions.size, *x.shape[dim + 1 :]))
        return self.gather_at(b, x, dim, index)

    def gather_at(self, b: Builder, x: Value, dim: int, index: Value) -> Value:
        """Emit what `gather_along` does, for positions that are computed."""
        dims = [d for d in range(x.rank) if d == dim or index.shape[d] > 1]
        batches = [d for d in dims if d != dim]
        slices = [d for d in range(x.rank) if d not in dims]
        return b.gather(
            x,
            b.reshape(index, (*(index.shape[d] for d in dims), 1)),
            offset_dims=slices,
            collapsed_slice_dims=[dim],
            start_index_map=[dim],
            operand_batching_dims=batches,
            start_indices_batching_dims=[dims.index(d) for d in batches],
            index_vector_dim=len(dims),
            slice_sizes=[x.shape[d] if d in slices else 1 for d in range(x.rank)],
        )

    def gather_slices(
        self, b: Builder, x: Value, dims: Sequence[int], positions: Sequence[Value]
    ) -> Value:
        """Emit slices of `x` at positions that are computed.

        Positions out of range are moved to the nearest that are not.

        Args:
            b: the builder to emit into.
            x: any tensor.
            dims: those that positions name, ascending.
            positions: for each of them, integers of one shape.

        Returns:
            The dimensions of the positions in the place of `dims`, or in front where these do not
            lie side by side.
        """
        return b.gather(
            x,
            stacked(b, positions),
            offset_dims=_slice_dims(x, dims, positions),
            collapsed_slice_dims=list(dims),
            start_index_map=list(dims),
            index_vector_dim=positions[0].rank,
            slice_sizes=[1 if d in dims else n for d, n in enumerate(x.shape)],
        )

    def weigh_along(
        self, b: Builder, x: Value, dim: int, places: np.ndarray, weights: np.ndarray
    ) -> Value:
        """Emit sums of elements of `x` along a dimension, by weights that are constant.

        `out[j]` is the sum of `weights[j][k] * x[places[j][k]]` over k for a vector.

        Args:
            b: the builder to emit into.
            x: floats; sums are in their type.
            dim: along which they are.
            places: (count, terms), integers; -1: the sum has no such term.
            weights: (count, terms), as they are rounded to the type of `x`.

        Returns:
            `x` with `count` elements along the dimension.
        """
        count, terms = places.shape
        position = b.constant(np.maximum(places, 0).astype(np.int32).reshape(-1))
        index = b.reshape(position, [count * terms if d == dim else 1 for d in range(x.rank)])
        shape = (*x.shape[:dim], count, terms, *x.shape[dim + 1 :])
        found = b.reshape(self.gather_along(b, x, dim, index), shape)
        along = (dim, dim + 1)
        weight = b.broadcast_in_dim(b.constant(weights, x.dtype), shape, along)
        parts = b.multiply(found, weight)
        if (places < 0).any():
            kept = b.broadcast_in_dim(b.constant(places >= 0), shape, along)
            parts = b.select(kept, parts, b.full(shape, 0, x.dtype))
        return b.reduce_sum(parts, (dim + 1,))

    def write_slices(
        self,
        b: Builder,
        x: Value,
        dims: Sequence[int],
        positions: Value,
        slices: Value,
        counting: int,
    ) -> Value:
        """Emit `x` with slices at positions that are computed.

        One at a position out of range is left out. Where several are written to one position,
        which of them is there is unspecified.

        Args:
            b: the builder to emit into.
            x: any tensor.
            dims: those that positions name, ascending.
            positions: (count, len(dims)), integers.
            slices: of the element type of `x`. Their dimensions are those of `x` without `dims`,
                with one of `count` among them.
            counting: which one that is.
        """
        (written,) = b.scatter(
            [x],
            positions,
            [slices],
            lambda _, new: new[0],
            index_vector_dim=1,
            update_window_dims=[dim for dim in range(slices.rank) if dim != counting],
            inserted_window_dims=list(dims),
            scatter_dims_to_operand_dims=list(dims),
        )
        return written

    def combine_along(
        self, b: Builder, x: Value, dim: int, index: Value, updates: Value, how: Combination
    ) -> Value:
        """Emit `x` with updates combined with its elements at positions along a dimension.

        `out[index[i][j]][j]` is combined with `updates[i][j]` for dim 0. An update at a position
        out of range is left out.

        Args:
            b: the builder to emit into.
            x: any tensor that has dimensions.
            dim: along which positions are.
            index: integers, of the shape of the updates; or 1 in dimensions along which positions
                are the same.
            updates: of the element type of `x`, and of its shape but for `dim`.
            how: they are combined.
        """
        combine = combination(b, how)
        dims = [d for d in range(x.rank) if d == dim or index.shape[d] > 1]
        batches = [d for d in dims if d != dim]
        (combined,) = b.scatter(
            [x],
            b.reshape(index, (*(index.shape[d] for d in dims), 1)),
            [updates],
            lambda old, new: combine(old[0], new[0]),
            index_vector_dim=len(dims),
            update_window_dims=[d for d in range(x.rank) if d not in dims],
            inserted_window_dims=[dim],
            scatter_dims_to_operand_dims=[dim],
            input_batching_dims=batches,
            scatter_indices_batching_dims=[dims.index(d) for d in batches],
        )
        return combined

    def combine_slices(
        self,
        b: Builder,
        x: Value,
        dims: Sequence[int],
        positions: Sequence[Value],
        updates: Value,
        how: Combination,
    ) -> Value:
        """Emit `x` with slices combined with its own at positions that are computed.

        One at a position out of range is left out.

        Args:
            b: the builder to emit into.
            x: any tensor.
            dims: those that positions name, ascending.
            positions: for each of them, integers of one shape.
            updates: of the element type of `x`, with the dimensions that `gather_slices` gives.
            how: they are combined.
        """
        combine = combination(b, how)
        (combined,) = b.scatter(
            [x],
            stacked(b, positions),
            [updates],
            lambda old, new: combine(old[0], new[0]),
            index_vector_dim=positions[0].rank,
            update_window_dims=_slice_dims(x, dims, positions),
            inserted_window_dims=list(dims),
            scatter_dims_to_operand_dims=list(dims),
        )
        return combined


def _slice_dims(x: Value, dims: Sequence[int], positions: Sequence[Value]) -> list[int]:
    """The dimensions of what is read or written at positions that no position names."""
    rank = positions[0].rank
    front = 0 if dims[-1] - dims[0] >= len(dims) else dims[0]
    return [d for d in range(x.rank - len(dims) + rank) if not front <= d < front + rank]


def stacked(b: Builder, positions: Sequence[Value]) -> Value:
    """Positions in several dimensions, side by side in a last dimension."""
    shape = positions[0].shape
    parts = [b.reshape(item, (*shape, 1)) for item in positions]
    return parts[0] if len(parts) == 1 else b.concatenate(parts, len(shape))


def combination(b: Builder, how: Combination) -> Callable[[Value, Value], Value]:
    """What a builder emits for two numbers at one place: the one there, and another one."""
    emitted: dict[Combination, Callable[[Value, Value], Value]] = {
        "sum": b.add,
        "prod": b.multiply,
        "max": b.maximum,
        "min": b.minimum,
        "and": b.and_,
        "or": b.or_,
        "last": lambda _, new: new,
    }
    return emitted[how]
