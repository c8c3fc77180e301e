"""Functions of JAX as foreign functions of torch: their results, programs and gradients.

JAX traces a function on descriptions of arrays, where sizes that only a call knows are symbols.
Gradients are those of `jax.vjp`, with rules that the function brings (`jax.custom_vjp`). The
function that saves values for them gives what costs more to compute again than to keep.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, compress, pairwise
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.jax_interop import compat, symbols
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.foreign_functions import Derivative, ForeignFunction, Spec

Function = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
"""Takes arrays and sizes; gives arrays."""

_PLATFORMS = {"tpu": "tpu", "cuda": "cuda", "rocm": "rocm", "gpu": "cuda"}
"""Platforms that JAX has rules of its own for; others get StableHLO without calls of libraries."""

_WIDE = frozenset(("float64", "complex128"))

_KEPT_PROGRAMS = 64

_CHEAP = frozenset(
    ["abs", "add", "and", "convert_element_type", "copy", "cos", "broadcast_in_dim", "div", "eq", "erf", "exp", "expand_dims", "expm1", "ge", "gt", "integer_pow", "iota", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "reshape", "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "squeeze", "stop_gradient", "sub", "tanh", "transpose"]
)
"""Operations of JAX that are computed again in the backward, where a compiler fuses them."""


class JaxFunction(ForeignFunction):
    """A function of JAX over arrays in order.

    Args:
        function: pure; traced by JAX.
        label: what users read.
        weak: arguments that are Python numbers, which leave the other arguments' types as they are.
    """

    def __init__(self, function: Function, label: str, weak: frozenset[int] = frozenset()) -> None:
        super().__init__(label)
        self._function = function
        self._weak = weak
        self._programs: OrderedDict[Any, Program] = OrderedDict()
        self._related: dict[Any, ForeignFunction] = {}
        self._lock = threading.RLock()

    def results(self, arguments: Sequence[Spec], sizes: Sequence[Any]) -> Sequence[Spec]:
        """See `ForeignFunction.results`; a size that JAX cannot decide about becomes a number."""
        import jax

        def shapes(known: Sequence[Spec], numbers: Sequence[Any]) -> Any:
            call = partial(self._function, sizes=numbers)
            with self._types(known):
                return jax.eval_shape(call, self._described(known))

        return _with_symbols(arguments, sizes, shapes)

    def program(
        self, arguments: Sequence[TensorType], sizes: Sequence[int], platform: str
    ) -> Program:
        """See `ForeignFunction.program`."""
        key = (tuple(arguments), tuple(sizes), platform)
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                found = self._programs[key] = self._lowered(arguments, sizes, platform)
                if len(self._programs) > _KEPT_PROGRAMS:
                    self._programs.popitem(last=False)
            return found

    def saving(self, wanted: Sequence[bool]) -> ForeignFunction:
        """See `ForeignFunction.saving`."""
        return self._once(("saving", tuple(wanted)), lambda: _Saving(self, tuple(wanted)))

    def derivative(self, arguments: Sequence[Spec], wanted: Sequence[bool]) -> Derivative:
        """See `ForeignFunction.derivative`; the function is computed again for its gradients."""
        again = self.differentiable(wanted)
        places = tuple(range(len(arguments)))
        return Derivative(again, (), places, self._floats(arguments), again)

    def differentiable(self, wanted: Sequence[bool]) -> ForeignFunction:
        """Gradients as a function of all arguments and of the results' gradients."""
        wanted = tuple(wanted)
        count = len(wanted)

        def gradients(arrays: Sequence[Any], sizes: Sequence[Any]) -> Sequence[Any]:
            results, pull = _vjp(self._function, wanted, arrays[:count], ())
            return _pulled(pull, results, arrays[count:])

        label = f"{self.label}.gradients"
        return self._once(("gradients", wanted), lambda: JaxFunction(gradients, label, self._weak))

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

    def _types(self, arguments: Sequence[Spec]) -> AbstractContextManager[Any]:
        """With types of 64 bits, where an argument is a float of 64 bits or JAX has them on."""
        import jax

        wide = any(
            spec.dtype.name in _WIDE
            for index, spec in enumerate(arguments)
            if index not in self._weak
        )
        on: AbstractContextManager[Any] = jax.enable_x64(wide or bool(jax.config.jax_enable_x64))
        return on

    def _described(self, arguments: Sequence[Spec]) -> list[Any]:
        import jax
        from jax.dtypes import canonicalize_dtype

        return [
            jax.ShapeDtypeStruct(
                spec.shape, canonicalize_dtype(spec.dtype.numpy), weak_type=index in self._weak
            )
            for index, spec in enumerate(arguments)
        ]

    def _lowered(
        self, arguments: Sequence[TensorType], sizes: Sequence[int], platform: str
    ) -> Program:
        import jax

        specs = [Spec(item.shape, item.dtype) for item in arguments]

        def call(arrays: Sequence[Any]) -> Sequence[Any]:
            return self._function(arrays, sizes)

        call.__name__ = call.__qualname__ = self.label
        with self._types(specs):
            described = self._described(specs)
            traced = jax.jit(call, keep_unused=True).trace(described)
            name = _PLATFORMS.get(platform, "pjrt")
            found = compat.lowered(traced.lower(lowering_platforms=(name,)))
        if found.function.devices != 1:
            raise ProgramError(
                f"function {self.label!r} of JAX: found {found.function.devices} devices, expected "
                "a function for one device"
            )
        taken = [dtypes.from_numpy(item.dtype) for item in described]
        if not found.constants and taken == [item.dtype for item in arguments]:
            return found.program
        builder = Builder(arguments, name=found.program.name)
        operands = [builder.constant(array) for array in found.constants]
        for value, dtype in zip(builder.parameters, taken, strict=True):
            operands.append(value if value.dtype == dtype else builder.convert(value, dtype))
        return builder.finish(builder.call(found.program, operands))

    def _floats(self, arguments: Sequence[Spec]) -> tuple[int, ...]:
        """Positions of the results that have gradients."""
        results = self.results(arguments, ())
        return tuple(at for at, spec in enumerate(results) if _has_gradients(spec.dtype))


@dataclass(frozen=True)
class _Plan:
    """What the gradients of a function need, for arguments of certain types.

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
        self._plans: dict[Any, _Plan] = {}

    def _saving(self, arrays: Sequence[Any], sizes: Sequence[Any]) -> Sequence[Any]:
        import jax

        plan = self._plan(list(map(_description, arrays)))
        results, pull = _vjp(self._kept(), self._wanted, arrays, sizes)
        values = jax.tree.leaves(pull)
        return [*results, *(values[at] for at in plan.fresh)]

    def _kept(self) -> Function:
        import jax

        function = self._base._function

        def call(arrays: Sequence[Any], sizes: Sequence[Any]) -> Sequence[Any]:
            inner = partial(function, sizes=sizes)
            found: Sequence[Any] = jax.checkpoint(
                inner, policy=_costs_more_than_memory, prevent_cse=False
            )(arrays)
            return found

        return call

    def _plan(self, described: Sequence[Any]) -> _Plan:
        import jax

        key = tuple((item.shape, item.dtype, item.weak_type) for item in described)
        if key in self._plans:
            return self._plans[key]
        pulls: list[Any] = []

        def both(*arrays: Any) -> Any:
            results, pull = _vjp(self._kept(), self._wanted, arrays, ())
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
            place = known.get(id(variable))
            if place is None:
                place = known[id(variable)] = len(described) + count + len(fresh)
                fresh.append(at)
            places.append(place)
        results = tuple(variable.aval for variable in outputs[:count])
        plan = _Plan(results, structure, tuple(fresh), tuple(places))
        return self._plans.setdefault(key, plan)

    def derivative(self, arguments: Sequence[Spec], wanted: Sequence[bool]) -> Derivative:
        """See `ForeignFunction.derivative`; values that were saved are used."""
        if tuple(wanted) != self._wanted:
            return super().derivative(arguments, wanted)
        with self._types(arguments):
            known, _ = _symbolic(arguments, ())
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
            reads=tuple(at for at, item in enumerate(plan.results) if _is_inexact(item.dtype)),
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
            Spec(tuple(sizes[start:end]), dtype)
            for (start, end), dtype in zip(self._bounds, self._dtypes, strict=True)
        ]
        plan = self._saving._plan(self._saving._described(specs))
        count = len(plan.places)
        pull = jax.tree.unflatten(plan.pull, arrays[:count])
        return _pulled(pull, plan.results, arrays[count:])

    def _types(self, arguments: Sequence[Spec]) -> AbstractContextManager[Any]:
        empty = [Spec((), dtype) for dtype in self._dtypes]
        return self._saving._types(empty)


def _costs_more_than_memory(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name not in _CHEAP


def _vjp(
    function: Function, wanted: Sequence[bool], arrays: Sequence[Any], sizes: Sequence[Any]
) -> tuple[Sequence[Any], Callable[[Any], Sequence[Any]]]:
    """Results, and what gives the gradients of the wanted arguments for those of the results."""
    import jax

    def of_wanted(*chosen: Any) -> list[Any]:
        supply = iter(chosen)
        given = [
            next(supply) if is_wanted else array
            for array, is_wanted in zip(arrays, wanted, strict=True)
        ]
        return list(function(given, sizes))

    return jax.vjp(of_wanted, *compress(arrays, wanted))  # type: ignore[no-any-return]


def _pulled(pull: Any, results: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
    """Gradients of arguments, for those of the results that are floats.

    Gradients of complex numbers are the conjugates of JAX's in torch.
    """
    import jax
    import numpy as np

    supply = iter(given)
    cotangents = [
        _conjugate(next(supply))
        if _is_inexact(item.dtype)
        else np.zeros(item.shape, jax.dtypes.float0)
        for item in results
    ]
    return [_conjugate(found) for found in pull(cotangents)]


def _conjugate(array: Any) -> Any:
    import jax.numpy as jnp

    return jnp.conj(array) if jnp.iscomplexobj(array) else array


def _description(array: Any) -> Any:
    """The type of an array that is traced."""
    import jax

    found = jax.typeof(array)
    return jax.ShapeDtypeStruct(found.shape, found.dtype, weak_type=found.weak_type)


def _is_inexact(dtype: Any) -> bool:
    import jax.numpy as jnp

    return bool(jnp.issubdtype(dtype, jnp.inexact))


def _has_gradients(dtype: dtypes.DType) -> bool:
    return dtype.is_float or dtype.is_complex


# -- sizes that only a call knows ------------------------------------------------------------------


def _symbolic(arguments: Sequence[Spec], sizes: Sequence[Any]) -> tuple[list[Spec], dict[str, Any]]:
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


def _with_symbols(
    arguments: Sequence[Spec],
    sizes: Sequence[Any],
    shapes: Callable[[Sequence[Spec], Sequence[Any]], Sequence[Any]],
) -> list[Spec]:
    """Types of results that JAX finds, with sizes as they were given."""
    joined = [*arguments, Spec(tuple(sizes), dtypes.of("int64"))]
    known, values = _symbolic(joined, ())
    if values:
        try:
            found = shapes(known[:-1], known[-1].shape)
        except Exception:
            # What JAX cannot decide for every size is decided for the sizes at hand.
            joined = [item._replace(shape=tuple(map(int, item.shape))) for item in joined]
            found = shapes(joined[:-1], joined[-1].shape)
    else:
        found = shapes(known[:-1], known[-1].shape)
    return [
        Spec(
            tuple(
                size if type(size) is int else symbols.evaluate(str(size), values)
                for size in item.shape
            ),
            dtypes.from_numpy(item.dtype),
        )
        for item in found
    ]
