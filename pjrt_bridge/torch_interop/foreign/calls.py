"""Functions of other frameworks as Python functions of tensors: nested arguments, numbers, keys.

Dynamo traces through a call: what depends on no tensor is a constant to it, and what is left is one
call of the operator of foreign functions.
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

from pjrt_bridge.errors import OptionError
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.foreign.arguments import (
    as_tensors,
    is_compiling,
    is_number,
    is_tensor,
    random_key,
)
from pjrt_bridge.torch_interop.foreign.operator import at_compile_time, call
from pjrt_bridge.torch_interop.foreign.structures import LEAF, Structure, flatten, unflatten
from pjrt_bridge.torch_interop.foreign_functions import ArrayFunction, ForeignFunction

_NUMBERS = itertools.count()
"""Of operators, one after the other."""

Make = Callable[[ArrayFunction, str, frozenset[int]], ForeignFunction]
"""Makes a foreign function of one for arrays in order, its label, and which arrays are numbers."""


def as_operator(
    function: Callable[..., Any],
    make: Make,
    *,
    framework: str,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    keyed: bool = False,
    row_dims: int = 0,
) -> Callable[..., Any]:
    """A function of another framework, callable with tensors of torch.

    Args:
        function: of arrays nested in tuples, named tuples, lists, dicts and None.
        make: see `Make`.
        framework: its name, for what users read.
        static_argnums: positions of arguments that are no arrays.
        static_argnames: the same, by name.
        keyed: its first parameter is the bits of a random key, which callers leave out.
        row_dims: see `ForeignFunction.row_dims`.

    Raises:
        OptionError: a static argument that the function does not have.
    """
    if is_compiling():
        compat.break_graph("operators of foreign functions are made outside of compiled functions")
    owner = _ForeignOperator(function, make, framework, keyed, row_dims)
    names, identity = owner.names, f"{owner.label} {next(_NUMBERS)}"
    static = frozenset(_static_names(owner.label, names, static_argnums, static_argnames))

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and not is_compiling():
            known = owner.of_tensors.get(len(args))
            if known is not None and all(map(is_tensor, args)):
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
        if keyed:
            tensors.append(random_key(leaves))
        found = owner.instance(identity, tuple(structures), tuple(kwargs), weak, tuple(constants))
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


class _ForeignOperator:
    """A foreign function as its calls need it; Dynamo treats what its methods give as constants.

    Attributes:
        of_tensors: for calls with so many tensors, and nothing else, the name of the function and
            the nesting of its results.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        make: Make,
        framework: str,
        keyed: bool,
        row_dims: int,
    ) -> None:
        self._function = function
        self._make = make
        self._keyed = keyed
        self._row_dims = row_dims
        name = getattr(function, "__name__", type(function).__name__)
        self.label = f"{framework}.{name}"
        names = list(inspect.signature(function).parameters)
        self.names = tuple(names[1:] if keyed else names)
        self._instances: dict[Any, ForeignFunction] = {}
        self._returned: dict[str, Structure] = {}
        self.of_tensors: dict[int, tuple[str, Structure]] = {}

    @at_compile_time
    def refuse(self, kind: str) -> None:
        """Refuse an argument that is no tensor and no number.

        Raises:
            OptionError: always; it names the type.
        """
        raise OptionError(
            f"{self.label}: found an argument of type {kind}, expected tensors and numbers in "
            "tuples, lists and dicts; name others in static_argnames"
        )

    def refuse_result(self, kind: str) -> None:
        """Refuse a result that is no array and no number.

        Raises:
            OptionError: always; it names the type.
        """
        raise OptionError(
            f"{self.label}: found a result of type {kind}, expected arrays and numbers in tuples, "
            "lists and dicts"
        )

    @at_compile_time
    def instance(
        self,
        identity: str,
        structures: tuple[Structure, ...],
        keywords: tuple[str, ...],
        weak: tuple[int, ...],
        constants: tuple[Any, ...],
    ) -> str:
        """The name of the function for arguments of this nesting.

        Args:
            identity: of the operator. Dynamo compares texts that a call is given in each call, but
                not the object whose method it takes for a constant.
            structures: the nesting of the arguments.
            keywords: the names of the last ones.
            weak: which leaves are numbers.
            constants: the static arguments.
        """
        key = (structures, keywords, weak, constants)
        found = self._instances.get(key)
        if found is None:
            made = _Instance(self, structures, keywords, constants)
            found = self._make(made, self.label, frozenset(weak))
            found.row_dims = self._row_dims
            made.name = found.name
            self._instances[key] = found
        return found.name

    @at_compile_time
    def returned(self, name: str) -> Structure:
        """The nesting of the results of a function that was traced."""
        return self._returned[name]

    def note_returned(self, name: str, structure: Structure) -> None:
        """Keep the nesting of the results of a function that was traced.

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
        return self._function(*((key,) if self._keyed else ()), *args, **kwargs)


class _Instance:
    """A function over arrays in order, for arguments of one nesting."""

    def __init__(
        self,
        operator: _ForeignOperator,
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
        structure = flatten(found, leaves)
        for leaf in leaves:
            if not hasattr(leaf, "dtype") and not is_number(leaf):
                self._operator.refuse_result(type(leaf).__name__)
        self._operator.note_returned(self.name, structure)
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
