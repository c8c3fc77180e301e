"""Sums of elements with constant weights along one dimension, for averages and resizing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context


def scale_of(size: int, count: int, align_corners: bool, given: float | None) -> float:
    """How far two elements of a resized dimension are from each other among those there were.

    Args:
        size: of the dimension.
        count: what it is resized to.
        align_corners: the first and the last elements stay where they are.
        given: by which it is resized, where the caller has said so.
    """
    if align_corners:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1 / given if given else size / count


@dataclass(frozen=True, eq=False)
class WeightedTerms:
    """The terms of sums along a dimension.

    Attributes:
        places: (count, terms), of the elements; -1: the sum has no such term.
        weights: (count, terms), of these elements.
    """

    places: np.ndarray
    weights: np.ndarray

    @classmethod
    def of_matrix(cls, matrix: np.ndarray, read: np.ndarray | None = None) -> WeightedTerms:
        """The terms of a product with a matrix.

        Elements that are not read have no part in a sum, which in a product they would have where
        they are infinite or NaN.

        Args:
            matrix: (size, count), the weights of each of the sums.
            read: (size, count), which elements are read, next to each other in each column; by
                default those with a weight.
        """
        mask = matrix != 0 if read is None else read
        counts = mask.sum(0)
        steps = np.arange(int(counts.max(initial=0)))
        places = np.where(steps < counts[:, None], mask.argmax(0)[:, None] + steps, -1)
        weights = matrix[places, np.arange(matrix.shape[1])[:, None]]
        return cls(places, np.where(places < 0, 0, weights))

    def turned(self, size: int) -> WeightedTerms:
        """The terms of gradients: each of `size` elements gets those of all that it is a term of.

        Args:
            size: of the dimension that places are in.
        """
        (sums, terms) = np.nonzero(self.places >= 0)
        read = self.places[sums, terms]
        order = np.argsort(read, kind="stable")
        sums, terms, read = sums[order], terms[order], read[order]
        counts = np.bincount(read, minlength=size)
        at = np.arange(len(read)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = (size, int(counts.max(initial=0)))
        places, weights = np.full(shape, -1), np.zeros(shape, self.weights.dtype)
        places[read, at] = sums
        weights[read, at] = self.weights[sums, terms]
        return WeightedTerms(places, weights)

    def sums(self, c: Context, x: Value, dim: int) -> Value:
        """The sums along a dimension of `x`."""
        return c.kernels.weigh_along(c.b, x, dim, self.places, self.weights)
