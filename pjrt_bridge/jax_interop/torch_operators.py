"""A function of JAX as an operator of torch.

    @torch_op
    def mlp(x, w):
        return jax.nn.gelu(x @ w)

    y = mlp(x, w)        # tensors of torch, with gradients

In eager it is one program of the default plugin, or of the device that its tensors are on. In a
graph that `torch.compile(backend="pjrt")` compiles, and in an exported model, its StableHLO is a
part of the program of the graph.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

from pjrt_bridge.errors import OptionError
from pjrt_bridge.jax_interop.functions import JaxFunction
from pjrt_bridge.torch_interop.foreign.arguments import (
    are_plain,
    as_tensors,
    is_compiling,
    is_number,
    is_tensor,
    random_key,
)
from pjrt_bridge.torch_interop.foreign.operator import at_compile_time, call
from pjrt_bridge.torch_interop.foreign.structures import LEAF, Structure, flatten, unflatten


def torch_op(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    random: bool = False,
) -> Any:
    """Make a function of JAX callable with tensors of torch.

    Arguments and results are arrays, nested in tuples, named tuples, lists, dicts and None. Numbers
    of Python are arrays without dimensions, as for `jax.jit`. Gradients are those of `jax.vjp`,
    with the function's own rules, and `torch.vmap` is `jax.vmap`. Where no tensor has floats of 64
    bits, integers have 32 bits, as everywhere in JAX (`jax_enable_x64`).

    Args:
        function: pure; its nesting of results must not depend on sizes or element types.
        static_argnums: positions of arguments that are no arrays; the function is traced for each
            of their values, which must be hashable.
        static_argnames: the same, by name.
        random: the function's first parameter is a key of `jax.random`. Callers leave it out: it is
            drawn from torch's generator.

    Returns:
        A function of the same arguments; without `function` a decorator.

    Raises:
        OptionError: a static argument that the function does not have.
    """
    if function is None:
        return lambda given: torch_op(
            given,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            random=random,
        )
    owner = _Operator(function, random)
    names = owner.names
    static = frozenset(_static_names(owner.label, names, static_argnums, static_argnames))

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and not is_compiling():
            known = owner.of_tensors.get(len(args))
            if known is not None and are_plain(args):
                return unflatten(known[1], call(known[0], args))
        leaves: list[Any] = []
        constants: list[Any] = []
        structures: list[Structure] = []
        for at, value in enumerate(args):
            name = names[at] if at < len(names) else None
            structures.append(_taken(value, name in static, leaves, constants))
        structures += [
            _taken(value, name in static, leaves, constants) for name, value in kwargs.items()
        ]
        for leaf in leaves:
            if not is_tensor(leaf) and not is_number(leaf):
                owner.refuse(type(leaf).__name__)
        weak = tuple(at for at, leaf in enumerate(leaves) if not is_tensor(leaf))
        tensors = as_tensors(leaves)
        if random:
            tensors.append(random_key(leaves))
        found = owner.instance(tuple(structures), tuple(kwargs), weak, tuple(constants))
        results = call(found, tensors)
        returned = owner.returned(found)
        if not is_compiling() and _are_same(tensors, args):
            owner.of_tensors[len(args)] = found, returned
        return unflatten(returned, results)

    return wrapper


def _are_same(tensors: Sequence[Any], args: Sequence[Any]) -> bool:
    return len(tensors) == len(args) and all(map(operator.is_, tensors, args))


def _taken(value: Any, is_static: bool, leaves: list[Any], constants: list[Any]) -> Structure:
    if is_static:
        constants.append(value)
        return _STATIC
    return flatten(value, leaves)


_STATIC: Structure = ("static",)


class _Operator:
    """What calls of a function need beside tensors; Dynamo treats what it gives as constants.

    Attributes:
        of_tensors: for calls with so many tensors, and nothing else, the name of the function and
            the nesting of its results.
    """

    def __init__(self, function: Callable[..., Any], random: bool) -> None:
        self._function = function
        self._random = random
        self.label = getattr(function, "__name__", type(function).__name__)
        names = list(inspect.signature(function).parameters)
        self.names = tuple(names[1:] if random else names)
        self._instances: dict[Any, JaxFunction] = {}
        self._returned: dict[str, Structure] = {}
        self.of_tensors: dict[int, tuple[str, Structure]] = {}

    @at_compile_time
    def refuse(self, kind: str) -> None:
        """An argument is nothing that becomes an array."""
        raise OptionError(
            f"{self.label}: found an argument of type {kind}, expected tensors and numbers in "
            "tuples, lists and dicts; name others in static_argnames"
        )

    @at_compile_time
    def instance(
        self,
        structures: tuple[Structure, ...],
        keywords: tuple[str, ...],
        weak: tuple[int, ...],
        constants: tuple[Any, ...],
    ) -> str:
        """The name of the function for arguments of this nesting."""
        key = (structures, keywords, weak, constants)
        found = self._instances.get(key)
        if found is None:
            made = _Instance(self, structures, keywords, constants)
            found = JaxFunction(made, f"jax.{self.label}", frozenset(weak))
            made.name = found.name
            self._instances[key] = found
        return found.name

    @at_compile_time
    def returned(self, name: str) -> Structure:
        """The nesting of the results of a function that was traced."""
        return self._returned[name]

    def note_returned(self, name: str, structure: Structure) -> None:
        """JAX traced the function.

        Raises:
            OptionError: the nesting is another than before.
        """
        before = self._returned.setdefault(name, structure)
        if before != structure:
            raise OptionError(
                f"{self.label}: found results nested as {structure}, expected {before} as for "
                "other sizes or element types"
            )

    def run(self, args: Sequence[Any], kwargs: dict[str, Any], key: Any) -> Any:
        """The function itself."""
        import jax

        if not self._random:
            return self._function(*args, **kwargs)
        bits = jax.lax.bitcast_convert_type(key, "uint32")
        return self._function(jax.random.wrap_key_data(bits, impl="threefry2x32"), *args, **kwargs)


class _Instance:
    """A function over arrays in order, for arguments of one nesting."""

    def __init__(
        self,
        operator: _Operator,
        structures: tuple[Structure, ...],
        keywords: tuple[str, ...],
        constants: tuple[Any, ...],
    ) -> None:
        self._operator = operator
        self._structures = structures
        self._keywords = keywords
        self._constants = constants
        self.name = ""

    def __call__(self, arrays: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
        """The results, in order."""
        supply, constants = iter(arrays), iter(self._constants)
        values = []
        for structure in self._structures:
            if structure == _STATIC:
                values.append(next(constants))
            else:
                count = _count(structure)
                values.append(unflatten(structure, [next(supply) for _ in range(count)]))
        first = len(values) - len(self._keywords)
        kwargs = dict(zip(self._keywords, values[first:], strict=True))
        found = self._operator.run(values[:first], kwargs, next(supply, None))
        leaves: list[Any] = []
        self._operator.note_returned(self.name, flatten(found, leaves))
        return leaves


def _count(structure: Structure) -> int:
    """How many leaves there are."""
    if structure == LEAF:
        return 1
    return sum(_count(item) for item in structure[2:])


def _static_names(
    label: str,
    names: Sequence[str],
    numbers: int | Iterable[int],
    given: str | Iterable[str],
) -> list[str]:
    positions = [numbers] if isinstance(numbers, int) else list(numbers)
    found = [given] if isinstance(given, str) else list(given)
    for at in positions:
        if not -len(names) <= at < len(names):
            raise OptionError(
                f"{label}: static_argnums: found {at}, expected a position among its "
                f"{len(names)} parameters"
            )
        found.append(names[at])
    for name in found:
        if name not in names:
            raise OptionError(
                f"{label}: static_argnames: found {name!r}, expected one of {', '.join(names)}"
            )
    return found
