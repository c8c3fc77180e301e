"""Faults in what lowerings write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from pjrt_bridge.torch_interop.lowering import registry
from pjrt_bridge.torch_interop.lowering.shaping.slicing import part, replace_part
from tests.differential.faults.registry import fault, fault_of


@contextmanager
def _lowerings(names: Sequence[str], change: Callable[[Any], Any]) -> Iterator[None]:
    registry.names()
    table = registry._LOWERINGS
    wrapped = {name: change(table[name]) for name in names if name in table}
    with mock.patch.dict(table, wrapped):
        yield


@fault
def slice_start() -> Iterator[None]:
    """A slice begins one element too early."""

    def change(lower: Any) -> Any:
        def run(
            c: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
        ) -> Any:
            size = x.shape[dim]
            first, stop, _ = slice(start, end).indices(size)
            if first > 0 and stop > first:
                return lower(c, x, dim, first - 1, stop - 1, step)
            return lower(c, x, dim, start, end, step)

        return run

    with _lowerings(["aten.slice.Tensor"], change):
        yield


@fault_of("sizes.0+reductions.sum")
def empty_sum() -> Iterator[None]:
    """The sum of nothing is one."""

    def change(lower: Any) -> Any:
        def run(c: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
            if 0 in x.shape:
                return c.full(c.output.shape, 1, c.output.dtype)
            return lower(c, x, *args, **kwargs)

        return run

    with _lowerings(["aten.sum.default", "aten.sum.dim_IntList"], change):
        yield


@fault_of("elementwise.where")
def inverted_mask() -> Iterator[None]:
    """`where` takes the other one."""

    def change(lower: Any) -> Any:
        def run(c: Any, condition: Any, x: Any, y: Any) -> Any:
            return lower(c, condition, y, x)

        return run

    with _lowerings(["aten.where.self"], change):
        yield


@fault_of("indexing.scatter", "mutation.setitem")
def scatter_without_last() -> Iterator[None]:
    """What is written at places does not reach the last row."""

    def change(lower: Any) -> Any:
        def run(c: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
            made = lower(c, x, *args, **kwargs)
            if x.rank == 0 or x.shape[0] < 2 or made.shape != x.shape:
                return made
            size = x.shape[0]
            return replace_part(c, made, part(c, x, 0, size - 1, size), 0, size - 1)

        return run

    names = ["index_put.default", "scatter.src", "scatter.value", "scatter_add.default",
             "slice_scatter.default", "select_scatter.default"]  # fmt: skip
    with _lowerings([f"aten.{name}" for name in names], change):
        yield


@fault_of("dtype.int8", "dtype.uint8", "dtype.int16")
def saturated_integers() -> Iterator[None]:
    """Sums and products of small integers stop at a limit."""

    def change(lower: Any) -> Any:
        def run(c: Any, x: Any, y: Any, **kwargs: Any) -> Any:
            made = lower(c, x, y, **kwargs)
            if made.dtype.name not in ("int8", "int16", "uint8"):
                return made
            most = c.full(made.shape, 20, made.dtype)
            return c.b.select(c.b.compare(made, most, "GT"), most, made)

        return run

    with _lowerings(["aten.add.Tensor", "aten.mul.Tensor", "aten.sub.Tensor"], change):
        yield


@fault_of("elementwise.round_trip")
def unrounded_half() -> Iterator[None]:
    """A conversion to half precision and back does nothing."""

    def change(lower: Any) -> Any:
        def run(c: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
            made = lower(c, x, *args, **kwargs)
            return _remembering(made, x) if made.dtype.name in ("float16", "bfloat16") else made

        return run

    with _lowerings(["aten._to_copy.default", "prims.convert_element_type.default"], change):
        yield


def _remembering(made: Any, x: Any) -> Any:
    return replace(made, exact=x) if x.dtype.name == "float32" else made


@fault_of("elementwise.floor_divide")
def truncated_division() -> Iterator[None]:
    """Remainders have the sign of the dividend."""

    def change(lower: Any) -> Any:
        def run(c: Any, x: Any, y: Any) -> Any:
            fmod = registry.find_lowering("aten.fmod.Tensor")
            return fmod(c, x, y) if fmod is not None else lower(c, x, y)

        return run

    with _lowerings(["aten.remainder.Scalar", "aten.remainder.Tensor"], change):
        yield


@fault_of("sorting.sort")
def reversed_sort() -> Iterator[None]:
    """A sort goes the other way."""

    def change(lower: Any) -> Any:
        def run(c: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
            return lower(c, x, *args, **{**kwargs, "descending": not kwargs.get("descending")})

        return run

    with _lowerings(["aten.sort.stable"], change):
        yield
