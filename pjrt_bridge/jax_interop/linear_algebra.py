"""Decompositions of matrices in operations that every plugin has, as functions of JAX's arrays.

JAX itself writes them as calls of LAPACK on its own CPU, as calls that XLA knows elsewhere
(`Qr`, `ProductOfElementaryHouseholderReflectors`), and on platforms that it does not know as errors
(eigenvalues of Hermitian matrices, and with them singular values). Source of the algorithms: Golub
and Van Loan, "Matrix Computations", 4th edition, 5.1.8 and 5.2 (reflections), 8.5 (rotations).

All functions take matrices `[..., rows, columns]` of float32, float64, complex64 or complex128.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from pjrt_bridge.jax_interop import compat

_SWEEPS = 30
"""At most; each turns every pair of columns once. The off-diagonal vanishes after 5 to 12."""


@cache
def complete_jax() -> None:
    """Give JAX the decompositions that it lacks on platforms that it does not know."""
    compat.lower_by_default("eigh_p", _eigh_of_primitive)


def _eigh_of_primitive(
    x: Any,
    *,
    lower: bool,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    **_: Any,
) -> list[Any]:
    values, vectors = eigh(x, lower=lower)
    if subset_by_index is not None:
        chosen = slice(*subset_by_index)
        values, vectors = values[..., chosen], vectors[..., chosen]
    return [vectors, values]


def eigh(x: Any, *, lower: bool) -> tuple[Any, Any]:
    """Ascending eigenvalues `[..., n]`, and eigenvectors `[..., n, n]`, of Hermitian matrices.

    Cyclic Jacobi rotations, of as many pairs of columns at once as there are. A matrix with
    infinities or NaN has NaN for results.

    Args:
        x: square matrices of which one triangle is read.
        lower: whether the lower triangle is.
    """
    import jax.numpy as jnp

    triangle = jnp.tril(x, -1) if lower else jnp.triu(x, 1)
    diagonal = jnp.real(jnp.diagonal(x, axis1=-2, axis2=-1)).astype(x.dtype)
    size = x.shape[-1]
    full = triangle + adjoint(triangle) + diagonal[..., None] * jnp.eye(size, dtype=x.dtype)
    values, vectors = _mapped(_eigh_of_one, full)
    return values, vectors


def _eigh_of_one(x: Any) -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp

    size = x.shape[0]
    if size < 2:
        return jnp.real(jnp.diagonal(x)), jnp.ones_like(x)
    largest = jnp.max(jnp.abs(x))
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    # A row and a column of zeros make the size even; no rotation mixes them with others.
    even = size + size % 2
    matrix = jnp.zeros((even, even), x.dtype).at[:size, :size].set(x / scale)
    limit = jnp.finfo(x.dtype).eps * jnp.linalg.norm(matrix)

    def off_diagonal(matrix: Any) -> Any:
        return jnp.linalg.norm(matrix * (1 - jnp.eye(even, dtype=matrix.dtype)))

    def rotate(_: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        matrix, vectors = state
        cosine, sine = _rotation(matrix)
        matrix, vectors = (_turned(array, cosine, sine, 1) for array in (matrix, vectors))
        matrix = _turned(matrix, cosine[:, None], jnp.conj(sine)[:, None], 0)
        return _next_pairs(_next_pairs(matrix, 0), 1), _next_pairs(vectors, 1)

    def goes_on(state: tuple[Any, Any, Any]) -> Any:
        sweep, matrix, _ = state
        return (sweep < _SWEEPS) & (off_diagonal(matrix) > limit)

    def sweep(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        count, matrix, vectors = state
        return count + 1, *jax.lax.fori_loop(0, even - 1, rotate, (matrix, vectors))

    start = (0, matrix, jnp.eye(even, dtype=x.dtype))
    _, matrix, vectors = jax.lax.while_loop(goes_on, sweep, start)
    values = jnp.real(jnp.diagonal(matrix))[:size] * scale
    order = jnp.argsort(values)
    unknown = jnp.where(jnp.isfinite(largest), 0, jnp.nan).astype(values.dtype)
    return values[order] + unknown, vectors[:size, :size][:, order] + unknown


def _rotation(matrix: Any) -> tuple[Any, Any]:
    """Cosines, and sines with phases, of what makes elements of pairs of columns zero.

    The pairs are a column of the first half and the one in its place in the second.
    """
    import jax.numpy as jnp

    half = matrix.shape[0] // 2
    element = jnp.diagonal(matrix[:half, half:])
    size = jnp.abs(element)
    is_zero = size == 0
    above = jnp.real(jnp.diagonal(matrix[:half, :half]))
    below = jnp.real(jnp.diagonal(matrix[half:, half:]))
    ratio = (below - above) / (2 * jnp.where(is_zero, 1, size))
    tangent = jnp.where(ratio < 0, -1, 1) / (jnp.abs(ratio) + jnp.hypot(ratio, 1))
    tangent = jnp.where(is_zero, 0, tangent)
    cosine = 1 / jnp.hypot(tangent, 1)
    phase = jnp.where(is_zero, 1, element / jnp.where(is_zero, 1, size).astype(element.dtype))
    return cosine.astype(matrix.dtype), (cosine * tangent).astype(matrix.dtype) * phase


def _turned(matrix: Any, cosine: Any, sine: Any, axis: int) -> Any:
    """A matrix with pairs of its columns (1) or rows (0) rotated."""
    import jax.numpy as jnp

    left, right = jnp.split(matrix, 2, axis)
    new = (cosine * left - jnp.conj(sine) * right, sine * left + cosine * right)
    return jnp.concatenate(new, axis)


def _next_pairs(matrix: Any, axis: int) -> Any:
    """Columns or rows in the order of the next pairs, as players in a tournament.

    The first one stays, all others move by one place in a circle: along the first half and back
    along the second. After as many rounds as there are others the order is that of the start.
    """
    import jax.numpy as jnp

    half = matrix.shape[axis] // 2
    if half == 1:
        return matrix
    left, right = jnp.split(matrix, 2, axis)
    first, between, last = jnp.split(left, [1, half - 1], axis)
    joining, following = jnp.split(right, [1], axis)
    return jnp.concatenate([first, joining, between, following, last], axis)


def reflections(x: Any) -> tuple[Any, Any]:
    """A QR decomposition as LAPACK's `geqrf` gives it.

    Returns:
        R in the upper triangles, and below it the vectors of the reflections; and their factors
        `[..., min(rows, columns)]`.
    """
    found, factors, _ = _mapped(partial(_reflections_of_one, pivoted=False), x)
    return found, factors


def pivoted_reflections(x: Any) -> tuple[Any, Any, Any]:
    """A QR decomposition with the columns in another order, as LAPACK's `geqp3` gives it.

    Returns:
        As `reflections`, and by place the column of `x` that is there `[..., columns]`.
    """
    found, factors, order = _mapped(partial(_reflections_of_one, pivoted=True), x)
    return found, factors, order


def _reflections_of_one(x: Any, *, pivoted: bool) -> tuple[Any, Any, Any]:
    import jax
    import jax.numpy as jnp

    rows = jnp.arange(x.shape[0])
    columns = jnp.arange(x.shape[1])

    def reflect(index: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        matrix, factors, order = state
        if pivoted:
            left = jnp.where(rows[:, None] >= index, jnp.abs(matrix), 0)
            lengths = jnp.where(columns >= index, jnp.linalg.norm(left, axis=0), -1)
            longest = jnp.argmax(lengths)
            swap = columns.at[index].set(longest).at[longest].set(index)
            matrix, order = matrix[:, swap], order[swap]
        column = matrix[:, index]
        head = column[index]
        tail = jnp.where(rows > index, column, 0)
        length = jnp.hypot(jnp.abs(head), jnp.linalg.norm(tail))
        is_done = (jnp.linalg.norm(tail) == 0) & (jnp.imag(head) == 0)
        diagonal = jnp.where(jnp.real(head) > 0, -length, length).astype(x.dtype)
        safe = jnp.where(is_done, 1, diagonal)
        factor = jnp.where(is_done, 0, (safe - head) / safe)
        vector = tail / jnp.where(is_done, 1, head - safe) + (rows == index)
        # Columns before this one hold vectors already.
        seen = jnp.where(columns > index, jnp.conj(vector) @ matrix, 0)
        matrix = matrix - jnp.conj(factor) * jnp.outer(vector, seen)
        new = jnp.where(rows > index, vector, column)
        new = jnp.where(is_done, column, new.at[index].set(diagonal))
        return matrix.at[:, index].set(new), factors.at[index].set(factor), order

    count = min(x.shape)
    start = (x, jnp.zeros(count, x.dtype), columns)
    found: tuple[Any, Any, Any] = jax.lax.fori_loop(0, count, reflect, start)
    return found


def product_of_reflections(x: Any, factors: Any) -> Any:
    """The first columns of a product of reflections, as LAPACK's `orgqr` and `ungqr` give them.

    Args:
        x: vectors of the reflections below the diagonals; as many columns as the result has.
        factors: of the reflections `[..., count]`.
    """
    import jax.numpy as jnp

    together = jnp.concatenate([x, jnp.zeros_like(x[..., :1, :])], axis=-2)
    count = factors.shape[-1]
    together = together.at[..., -1, :count].set(factors)
    return _mapped(lambda one: _product_of_one(one[:-1], one[-1, :count]), together)


def _product_of_one(x: Any, factors: Any) -> Any:
    import jax
    import jax.numpy as jnp

    rows = jnp.arange(x.shape[0])
    count = factors.shape[0]

    def reflect(step: Any, product: Any) -> Any:
        index = count - 1 - step
        vector = jnp.where(rows > index, x[:, index], 0) + (rows == index)
        return product - factors[index] * jnp.outer(vector, jnp.conj(vector) @ product)

    return jax.lax.fori_loop(0, count, reflect, jnp.eye(x.shape[0], x.shape[1], dtype=x.dtype))


def adjoint(x: Any) -> Any:
    """Matrices transposed, and conjugated."""
    import jax.numpy as jnp

    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """A function of one matrix for each matrix of a batch."""
    import jax

    batch = x.shape[:-2]
    found = jax.vmap(function)(x.reshape((math.prod(batch), *x.shape[-2:])))
    return jax.tree.map(lambda leaf: leaf.reshape((*batch, *leaf.shape[1:])), found)
