"""Linear algebra over matrices of padded sizes.

A square matrix gets ones on the diagonal of its padding, so it is one block of two: what is
computed of it is computed of each block, and the other is padding again. A rectangular one gets
zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    Extent,
    MixesRows,
    PaddedDims,
    extent_of,
)
from pjrt_bridge.torch_interop.passes.padding.formulas import Term
from pjrt_bridge.torch_interop.passes.padding.rows import Use

ResultOfMatrix = Literal["matrix", "rows", "batch"]
"""What a result has for each matrix: as many elements, one for each row, or one."""


def of_square(name: str, *parts: ResultOfMatrix) -> Callable[[Use], list[PaddedDims]]:
    """An operator on square matrices.

    Args:
        name: of the argument.
        parts: of the results.
    """

    def dims(use: Use) -> list[PaddedDims]:
        found = _square(use, name)
        use.emit = lambda e: _several(e, use, **{name: _with_ones(e, use, name)})
        return [_part(use, name, found, part) for part in parts]

    return dims


def determinant(*parts: ResultOfMatrix) -> Callable[[Use], list[PaddedDims]]:
    """Determinants of square matrices, with factors that derivatives read.

    Those of the transpose where the matrices lie row-major, so the padded ones have to lie alike.

    Args:
        parts: of the results.
    """

    def dims(use: Use) -> list[PaddedDims]:
        found = _square(use, "A")
        use.emit = lambda e: _several(e, use, A=_lying_alike(e, use, "A", _with_ones(e, use, "A")))
        return [_part(use, "A", found, part) for part in parts]

    return dims


def solved(name: str, other: str, *parts: ResultOfMatrix) -> Callable[[Use], list[PaddedDims]]:
    """Equations with square matrices.

    Args:
        name: the argument with the matrices.
        other: that with the right-hand sides; the first result has their sizes.
        parts: of the results behind it.
    """

    def dims(use: Use) -> list[PaddedDims]:
        found = _square(use, name)
        first = _solutions(use, name, other, found)
        use.fill(other, 0)
        changed: dict[str, Callable[[Emission], fx.Node]] = {
            name: lambda e: _with_ones(e, use, name)
        }
        if use["pivots"] is not None:
            _check_pivots(use, "pivots", found)
            changed["pivots"] = lambda e: _pivots(e, use, "pivots")
        use.emit = lambda e: _several(e, use, **{at: make(e) for at, make in changed.items()})
        return [first, *(_part(use, name, found, part) for part in parts)]

    return dims


def eigenvalues(use: Use) -> list[PaddedDims]:
    """Eigenvalues of symmetric matrices and their vectors; those of padding are the largest."""
    found = _square(use, "A")
    use.emit = lambda e: _several(e, use, A=_with_ones(e, use, "A", _beyond(e, use)))
    vectors = found if use["compute_v"] else {}
    return [_part(use, "A", found, "rows"), vectors]


def exponential(use: Use) -> PaddedDims:
    """The exponential of a matrix."""
    found = _square(use, "self")
    use.fill("self", 0)
    return found


def orthogonal(use: Use) -> list[PaddedDims]:
    """QR of matrices with any number of rows: rows of zeros are zeros in Q."""
    found, last = use.dims("A"), use.rank("A") - 1
    if last in found:
        raise MixesRows("it works along the dimension")
    use.fill("A", 0)
    if last - 1 in found:
        use.needs_prefix(found[last - 1])
    # A call decides whether there are fewer rows than columns: the factors have more zeros then.
    batch, rank, (_, second) = _part(use, "A", found, "batch"), use.rank("A"), use.results
    inner = use.shape(second)[rank - 2]
    between = extent_of(inner) if use.is_padded(inner) else None
    return [
        {} if use["mode"] == "r" else {**found, **({} if between is None else {last: between})},
        batch if between is None else {**batch, last - 1: between},
    ]


def singular(use: Use) -> list[PaddedDims]:
    """Singular values of matrices, and their vectors: of square ones, or of any number of rows."""
    found, last = use.dims("A"), use.rank("A") - 1
    if {last - 1, last} <= found.keys():
        return _singular_of_square(use)
    if use["full_matrices"] and found.keys() & {last - 1, last}:
        raise MixesRows("it works along the dimension")
    use.fill("A", 0)
    sizes, (_, values, _) = use.shape("A"), use.results
    inner = use.shape(values)[-1]
    between = extent_of(inner) if use.is_padded(inner) else None
    if between is not None:
        # With fewer rows, vectors of singular values that are 0 may lie in the padding.
        longer = last if last in found else last - 1
        use.needs_elements(sizes[longer] - sizes[2 * last - 1 - longer] + 1)
    batch = _part(use, "A", found, "batch")
    first = batch if between is None else {**batch, last - 1: between}
    if not use["compute_uv"]:
        return [{}, first, {}]
    inside = {} if between is None else {last: between}
    left = {dim: extent for dim, extent in found.items() if dim < last}
    right = {dim: extent for dim, extent in found.items() if dim != last - 1}
    return [{**left, **inside}, first, {**first, **right}]


def _singular_of_square(use: Use) -> list[PaddedDims]:
    """Those of padding are the largest, so they come first, and are moved behind the others."""
    found, last = _square(use, "A"), use.rank("A") - 1
    size = use.shape("A")[last]

    def emit(e: Emission) -> Any:
        made = e.repeat(use.node, A=_with_ones(e, use, "A", _beyond(e, use)))
        first = e.call("aten.rsub.Scalar", e.count(size, torch.int64), e.size(size))
        place = e.call("aten.add.Tensor", e.positions(found[last]), first)
        place = e.call("aten.clamp.default", place, None, e.size(size - 1))
        vectors, values, others = (e.item(made, at) for at in range(3))
        values = e.call("aten.index_select.default", values, last - 1, place)
        if use["compute_uv"]:
            vectors = e.call("aten.index_select.default", vectors, last, place)
            others = e.call("aten.index_select.default", others, last - 1, place)
        return [vectors, values, others]

    use.emit = emit
    batch = _part(use, "A", found, "batch")
    # The sizes of the results are the smaller one of two that are equal.
    return [{**use.promised(result), **batch} for result in use.results]


def pseudoinverse(use: Use) -> PaddedDims:
    """The pseudoinverse: rows of zeros are columns of zeros in it."""
    found, last = use.dims("self"), use.rank("self") - 1
    for dim in found.keys() & {last - 1, last}:
        use.needs_prefix(found[dim])
        use.needs_elements(use.shape("self")[dim])
    use.fill("self", 0)
    if use["rtol"] is None:
        use.emit = lambda e: e.repeat(use.node, rtol=_tolerance(e, use))
    swapped = {last: last - 1, last - 1: last}
    return {swapped.get(dim, dim): extent for dim, extent in found.items()}


def _tolerance(e: Emission, use: Use) -> fx.Node:
    """The relative tolerance that PyTorch takes for matrices of the call's sizes."""
    rows, columns = use.shape("self")[-2:]
    dtype = use.result.dtype
    real = dtype.to_real() if dtype.is_complex else dtype
    size = Term(e, e.count(rows, real)).call("maximum.default", Term(e, e.count(columns, real)))
    made = size * torch.finfo(real).eps
    if use["atol"] is not None:
        positive = Term(e, e[use["atol"]]).call("gt.Scalar", 0)
        made = positive.where(made.like(0), made)
    return made.node


def checked(use: Use) -> PaddedDims:
    """Errors of matrices, of which padding has none."""
    use.fill("info", 0)
    return {}


# -- parts -----------------------------------------------------------------------------------------


def _square(use: Use, name: str) -> PaddedDims:
    found, rank = use.dims(name), use.rank(name)
    inside = found.keys() & {rank - 2, rank - 1}
    if len(inside) == 1:
        raise MixesRows("it works along the dimension")
    if inside:
        use.unified(found[rank - 2], found[rank - 1])
        use.needs_prefix(found[rank - 1])
    return found


def _part(use: Use, name: str, found: PaddedDims, part: ResultOfMatrix) -> PaddedDims:
    end = use.rank(name) - {"matrix": 0, "rows": 1, "batch": 2}[part]
    return {dim: extent for dim, extent in found.items() if dim < end}


def _solutions(use: Use, name: str, other: str, found: PaddedDims) -> PaddedDims:
    """The padded dimensions of what solves equations."""
    sides, rank, width = use.dims(other), use.rank(name), use.rank(other)
    are_vectors = width == 1 or use.shape(other) == use.shape(name)[:-1]
    inner = 1 if are_vectors else 2
    row = width - (1 if are_vectors or use["left"] is False else 2)
    if (row in sides) != (rank - 1 in found):
        raise MixesRows("it combines the dimension with one of another size")
    if row in sides:
        use.unified(sides[row], found[rank - 1])
    wide = max(rank - 2, width - inner)
    batches = (
        (found, use.shape(name), rank - 2),
        (sides, use.shape(other), width - inner),
    )
    made: dict[int, Extent] = {}
    for dims, _, count in batches:
        for dim, extent in dims.items():
            if dim < count:
                use.unified(made.setdefault(dim + wide - count, extent), extent)
    for dims, shape, count in batches:
        for at in made:
            dim = at - wide + count
            if dim >= 0 and dim not in dims and shape[dim] != 1:
                raise MixesRows("it combines the dimension with one of another size")
    behind = {dim + wide - width + inner: one for dim, one in sides.items() if dim >= width - inner}
    return {**made, **behind}


def unpacked(use: Use) -> list[PaddedDims]:
    """The factors of LU, and the permutation of rows."""
    found = _square(use, "LU_data")
    _check_pivots(use, "LU_pivots", found)
    use.emit = lambda e: _several(
        e, use, LU_data=_with_ones(e, use, "LU_data"), LU_pivots=_pivots(e, use, "LU_pivots")
    )
    given = use["unpack_pivots"], use["unpack_data"], use["unpack_data"]
    return [found if wanted else {} for wanted in given]


def _check_pivots(use: Use, name: str, found: PaddedDims) -> None:
    rank = use.rank(name)
    if use.dims(name) != {dim: extent for dim, extent in found.items() if dim < rank}:
        raise MixesRows("it combines the dimension with one of another size")


def _several(e: Emission, use: Use, **changes: fx.Node) -> Any:
    made = e.repeat(use.node, **changes)
    count = len(use.results)
    return made if count == 1 else [e.item(made, at) for at in range(count)]


def _with_ones(e: Emission, use: Use, name: str, one: Term | None = None) -> fx.Node:
    """Square matrices with ones, or another number, on the diagonal of their padding."""
    given: fx.Node = e[use[name]]
    if not use.dims(name):
        return given
    promise = compat.promise(use[name])
    made = Term(e, e.call("aten.eye.default", e.size(use.shape(name)[-1]), dtype=promise.dtype))
    made = made if one is None else (made * one).to(promise.dtype)
    return e.call("aten.where.self", e.mask(use.dims(name), use.rank(name)), given, made.node)


def _lying_alike(e: Emission, use: Use, name: str, made: fx.Node) -> fx.Node:
    """What is made of matrices: row-major where these are, else by columns."""
    row_major = compat.stand_in(compat.promise(use[name])).is_contiguous()
    if not row_major:
        made = e.call("aten.transpose.int", made, -2, -1)
    made = e.call("aten.clone.default", made, memory_format=torch.contiguous_format)
    return made if row_major else e.call("aten.transpose.int", made, -2, -1)


def _beyond(e: Emission, use: Use) -> Term:
    """For each matrix more than its eigenvalues or singular values, of their order.

    So they stay as exact. Of symmetric matrices one half is given.
    """
    dims, rank, dtype = use.dims("A"), use.rank("A"), compat.promise(use["A"]).dtype
    given = Term(e, e.filled(e[use["A"]], dims, rank, 0, dtype))
    if use["UPLO"] is not None:
        given = given.call("tril.default" if use["UPLO"] == "L" else "triu.default")
    given = given.call("abs.default")
    sums = given.call("sum.dim_IntList", [-1]) + given.call("sum.dim_IntList", [-2])
    most = sums.call("amax.default", [-1], True).call("unsqueeze.default", -1) * 2
    return most.call("eq.Scalar", 0).where(most.like(1), most)


def _pivots(e: Emission, use: Use, name: str) -> fx.Node:
    """Row numbers from 1 on, with which rows are swapped: those of padding stay where they are."""
    dims, given = use.dims(name), e[use[name]]
    if dims:
        own = e.call("aten.arange.start", 1, e.size(use.shape(name)[-1] + 1), dtype=torch.int32)
        given = e.call("aten.where.self", e.mask(dims, use.rank(name)), given, own)
    assert isinstance(given, fx.Node)
    return given
