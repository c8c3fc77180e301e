"""Functions of JAX as foreign functions of torch: their results, programs and gradients.

JAX traces a function on descriptions of arrays, where sizes that only a call knows are symbols.
Gradients are those of `jax.vjp`, with rules that the function brings (`jax.custom_vjp`). The
function that saves values for them gives what costs more to compute again than to keep.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.jax_interop import compat, linear_algebra
from pjrt_bridge.jax_interop.derivatives import (
    costs_more_than_memory,
    description,
    is_inexact,
    jvp,
    pulled,
    vjp,
)
from pjrt_bridge.jax_interop.lapack import without_lapack
from pjrt_bridge.jax_interop.symbolic_types import results_of, with_symbols
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.foreign_functions import (
    ArrayFunction,
    ArraySpec,
    Derivative,
    ForeignFunction,
)

_PLATFORMS = {"tpu": "tpu", "cuda": "cuda", "rocm": "rocm", "gpu": "cuda"}
"""Platforms that JAX has rules of its own for; others get StableHLO without calls of libraries."""

_WIDE = frozenset(("float64", "complex128"))

_KEPT_PROGRAMS = 64


class JaxFunction(ForeignFunction):
    """A function of JAX over arrays in order.

    Args:
        function: pure; traced by JAX.
        label: what users read.
        weak: arguments that are Python numbers, which leave the other arguments' types as they are.
    """

    def __init__(
        self, function: ArrayFunction, label: str, weak: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(label)
        self._function = function
        self._weak = weak
        self._lowered = lru_cache(_KEPT_PROGRAMS)(self._lower)
        self._related: dict[Any, ForeignFunction] = {}
        self._lock = threading.RLock()

    def results(self, arguments: Sequence[ArraySpec], sizes: Sequence[Any]) -> Sequence[ArraySpec]:
        """See `ForeignFunction.results`; a size that JAX cannot decide about becomes a number."""
        import jax

        def shapes(known: Sequence[ArraySpec], numbers: Sequence[Any]) -> Any:
            call = partial(self._function, sizes=numbers)
            with self._types(known):
                return jax.eval_shape(call, self._described(known))

        return results_of(arguments, sizes, shapes)

    def program(
        self, arguments: Sequence[TensorType], sizes: Sequence[int], platform: str
    ) -> Program:
        """See `ForeignFunction.program`."""
        with self._lock:
            return self._lowered(tuple(arguments), tuple(sizes), platform)

    def saving(self, wanted: Sequence[bool]) -> ForeignFunction:
        """See `ForeignFunction.saving`."""
        return self._once(("saving", tuple(wanted)), lambda: _Saving(self, tuple(wanted)))

    def derivative(self, arguments: Sequence[ArraySpec], wanted: Sequence[bool]) -> Derivative:
        """See `ForeignFunction.derivative`; the function is computed again for its gradients."""
        again = self.differentiable(wanted)
        places = tuple(range(len(arguments)))
        return Derivative(again, (), places, self._floats(arguments), again)

    def differentiable(self, wanted: Sequence[bool]) -> ForeignFunction:
        """Gradients as a function of all arguments and of the results' gradients."""
        wanted = tuple(wanted)
        count = len(wanted)

        def gradients(arrays: Sequence[Any], sizes: Sequence[Any]) -> Sequence[Any]:
            results, pull = vjp(self._function, wanted, arrays[:count], ())
            return pulled(pull, results, arrays[count:])

        label = f"{self.label}.gradients"
        return self._once(("gradients", wanted), lambda: JaxFunction(gradients, label, self._weak))

    def pushed(self, moved: Sequence[bool]) -> ForeignFunction:
        """See `ForeignFunction.pushed`."""
        moved = tuple(moved)
        count = len(moved)

        def tangents(arrays: Sequence[Any], sizes: Sequence[Any]) -> Sequence[Any]:
            return jvp(self._function, moved, arrays[:count], arrays[count:], sizes)

        label = f"{self.label}.tangents"
        return self._once(("tangents", moved), lambda: JaxFunction(tangents, label, self._weak))

    def mapped(self, dimensions: Sequence[int | None]) -> ForeignFunction:
        """See `ForeignFunction.mapped`."""
        import jax

        def over_rows(arrays: Sequence[Any], sizes: Sequence[Any]) -> Sequence[Any]:
            call = partial(self._function, sizes=sizes)
            found: Sequence[Any] = jax.vmap(call, in_axes=(list(dimensions),))(list(arrays))
            return found

        label = f"{self.label}.vmap"
        return self._once(
            ("vmap", tuple(dimensions)), lambda: JaxFunction(over_rows, label, self._weak)
        )

    def _once(self, key: Any, make: Callable[[], ForeignFunction]) -> ForeignFunction:
        with self._lock:
            if key not in self._related:
                self._related[key] = make()
            return self._related[key]

    # -- tracing -----------------------------------------------------------------------------------

    def _types(self, arguments: Sequence[ArraySpec]) -> AbstractContextManager[Any]:
        """With types of 64 bits, where an argument is a float of 64 bits or JAX has them on."""
        import jax

        wide = any(
            spec.dtype.name in _WIDE
            for index, spec in enumerate(arguments)
            if index not in self._weak
        )
        on: AbstractContextManager[Any] = jax.enable_x64(wide or bool(jax.config.jax_enable_x64))
        return on

    def _described(self, arguments: Sequence[ArraySpec]) -> list[Any]:
        import jax
        from jax.dtypes import canonicalize_dtype

        return [
            jax.ShapeDtypeStruct(
                spec.shape, canonicalize_dtype(spec.dtype.numpy), weak_type=index in self._weak
            )
            for index, spec in enumerate(arguments)
        ]

    def _lower(
        self, arguments: tuple[TensorType, ...], sizes: tuple[int, ...], platform: str
    ) -> Program:
        import jax

        linear_algebra.complete_jax()
        specs = [ArraySpec(item.shape, item.dtype) for item in arguments]

        def call(arrays: Sequence[Any]) -> Sequence[Any]:
            return self._function(arrays, sizes)

        call.__name__ = call.__qualname__ = self.label
        with self._types(specs):
            described = self._described(specs)
            traced = jax.jit(call, keep_unused=True).trace(described)
            known = _PLATFORMS.get(platform)
            found = compat.lowered(traced.lower(lowering_platforms=(known or compat.UNKNOWN,)))
        if found.function.devices != 1:
            raise ProgramError(
                f"function {self.label!r} of JAX: found {found.function.devices} devices, expected "
                "a function for one device"
            )
        program = found.program
        if known is None:
            program = without_lapack(program, f"function {self.label!r} of JAX")
        taken = [dtypes.from_numpy(item.dtype) for item in described]
        if not found.constants and taken == [item.dtype for item in arguments]:
            return program
        builder = Builder(arguments, name=program.name)
        operands = [builder.constant(array) for array in found.constants]
        for value, dtype in zip(builder.parameters, taken, strict=True):
            operands.append(value if value.dtype == dtype else builder.convert(value, dtype))
        return builder.finish(builder.call(program, operands))

    def _floats(self, arguments: Sequence[ArraySpec]) -> tuple[int, ...]:
        """Positions of the results that have gradients."""
        results = self.results(arguments, ())
        return tuple(at for at, spec in enumerate(results) if _has_gradients(spec.dtype))


@dataclass(frozen=True)
class _GradientPlan:
    """The plan of a function's gradients, for arguments of certain types.

    Attributes:
        results: types of the function's results.
        pull: the structure of what computes gradients, without the values in it.
        fresh: positions of the values that are neither arguments nor results.
        places: for each value its position among arguments, results and `fresh` ones.
    """

    results: tuple[Any, ...]
    pull: Any
    fresh: tuple[int, ...]
    places: tuple[int, ...]


class _Saving(JaxFunction):
    """A function that also gives what the gradients of some arguments need."""

    def __init__(self, base: JaxFunction, wanted: tuple[bool, ...]) -> None:
        super().__init__(self._saving, f"{base.label}.saving", base._weak)
        self._base = base
        self._wanted = wanted
        self._plans: dict[Any, _GradientPlan] = {}

    def _saving(self, arrays: Sequence[Any], sizes: Sequence[Any]) -> Sequence[Any]:
        import jax

        plan = self._plan(list(map(description, arrays)))
        results, pull = vjp(self._kept(), self._wanted, arrays, sizes)
        values = jax.tree.leaves(pull)
        return [*results, *(values[at] for at in plan.fresh)]

    def _kept(self) -> ArrayFunction:
        import jax

        function = self._base._function

        def call(arrays: Sequence[Any], sizes: Sequence[Any]) -> Sequence[Any]:
            inner = partial(function, sizes=sizes)
            found: Sequence[Any] = jax.checkpoint(
                inner, policy=costs_more_than_memory, prevent_cse=False
            )(arrays)
            return found

        return call

    def _plan(self, described: Sequence[Any]) -> _GradientPlan:
        import jax

        key = tuple((item.shape, item.dtype, item.weak_type) for item in described)
        if key in self._plans:
            return self._plans[key]
        pulls: list[Any] = []

        def both(*arrays: Any) -> Any:
            results, pull = vjp(self._kept(), self._wanted, arrays, ())
            values, structure = jax.tree.flatten(pull)
            pulls.append((structure, len(results)))
            return [*results, *values]

        traced = jax.make_jaxpr(both)(*described)
        ((structure, count),) = pulls
        outputs = traced.jaxpr.outvars
        known: dict[int, int] = {}
        for place, variable in enumerate((*traced.jaxpr.invars, *outputs[:count])):
            known.setdefault(id(variable), place)
        fresh: list[int] = []
        places: list[int] = []
        for at, variable in enumerate(outputs[count:]):
            if id(variable) not in known:
                known[id(variable)] = len(described) + count + len(fresh)
                fresh.append(at)
            places.append(known[id(variable)])
        results = tuple(variable.aval for variable in outputs[:count])
        plan = _GradientPlan(results, structure, tuple(fresh), tuple(places))
        return self._plans.setdefault(key, plan)

    def derivative(self, arguments: Sequence[ArraySpec], wanted: Sequence[bool]) -> Derivative:
        """See `ForeignFunction.derivative`; values that were saved are used."""
        if tuple(wanted) != self._wanted:
            return super().derivative(arguments, wanted)
        with self._types(arguments):
            known, _ = with_symbols(arguments, ())
            plan = self._plan(self._described(known))
        ranks = tuple(len(spec.shape) for spec in arguments)
        dtypes_of = tuple(spec.dtype for spec in arguments)
        backward = self._once(
            ("backward", ranks, dtypes_of), lambda: _Backward(self, ranks, dtypes_of)
        )
        return Derivative(
            backward=backward,
            sizes=tuple(size for spec in arguments for size in spec.shape),
            saved=plan.places,
            reads=tuple(at for at, item in enumerate(plan.results) if is_inexact(item.dtype)),
            differentiable=self._base.differentiable(wanted),
        )


class _Backward(JaxFunction):
    """Gradients from saved values and the results' gradients; sizes are those of the arguments."""

    def __init__(
        self, saving: _Saving, ranks: Sequence[int], dtypes_of: Sequence[dtypes.DType]
    ) -> None:
        super().__init__(self._gradients, f"{saving._base.label}.backward")
        self._saving = saving
        self._bounds = tuple(pairwise(accumulate(ranks, initial=0)))
        self._dtypes = tuple(dtypes_of)

    def _gradients(self, arrays: Sequence[Any], sizes: Sequence[Any]) -> Sequence[Any]:
        import jax

        specs = [
            ArraySpec(tuple(sizes[start:end]), dtype)
            for (start, end), dtype in zip(self._bounds, self._dtypes, strict=True)
        ]
        plan = self._saving._plan(self._saving._described(specs))
        count = len(plan.places)
        pull = jax.tree.unflatten(plan.pull, arrays[:count])
        return pulled(pull, plan.results, arrays[count:])

    def _types(self, arguments: Sequence[ArraySpec]) -> AbstractContextManager[Any]:
        empty = [ArraySpec((), dtype) for dtype in self._dtypes]
        return self._saving._types(empty)


def _has_gradients(dtype: dtypes.DType) -> bool:
    return dtype.is_float or dtype.is_complex
