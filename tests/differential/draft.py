"""A program while it is generated: every statement runs in eager mode on the values of every call.

So its types, shapes and strides are known, and a statement that does not run is not taken.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.differential import values
from tests.differential.ir import Code, Name, Operand, Program, Statement

_ELEMENTS = 2048
_LARGEST = 4096.0

HALF = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float64, *HALF)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)

Environment = dict[str, Any]


class Draft:
    """A program that grows.

    Args:
        rng: decides everything.
        columns: what differs from call to call.
        calls: rows of their values.

    Attributes:
        environments: for each call the values of all variables so far.
        visible: variables that the body may use.
        rough: variables whose values are rounded.
        drawn: variables whose values are drawn.
    """

    def __init__(
        self, rng: random.Random, columns: Sequence[str], calls: Sequence[tuple[Any, ...]]
    ) -> None:
        self.rng = rng
        self.columns = tuple(columns)
        self.calls = tuple(calls)
        self.setup: list[Statement] = []
        self.body: list[Statement] = []
        self.parameters: list[str] = []
        self.features: set[str] = set()
        self.visible: list[str] = []
        self.rough: set[str] = set()
        self.drawn: set[str] = set()
        self.failed = False
        # How often a number is an argument, or made of a size, where it may be.
        self._share = rng.choice([0.2, 0.5, 0.9])
        self._number = 0
        self.environments: list[Environment] = []
        self._restart()

    # -- growing -----------------------------------------------------------------------------------

    def prepare(self, statement: Statement) -> bool:
        """Add a statement to what makes the arguments."""
        if not self._runs(statement):
            self._restart()
            return False
        self.setup.append(statement)
        return True

    def add(self, statement: Statement, rough: bool = False, drawn: bool = False) -> bool:
        """Add a statement to the body, if it runs in all calls and gives what may go on."""
        if not self._runs(statement) or not self._is_fit(statement):
            self._restart()
            return False
        self.body.append(statement)
        self._mark(statement, rough, drawn)
        if statement.target and statement.target not in self.visible:
            self.visible.append(statement.target)
        return True

    def add_failing(self, statement: Statement) -> bool:
        """Add a last statement that raises in some call."""
        if self._runs(statement):
            self._restart()
            return False
        self.body.append(statement)
        self.failed = True
        return True

    def new(self, prefix: str = "v") -> str:
        """A name for a variable."""
        self._number += 1
        return f"{prefix}{self._number}"

    def _restart(self) -> None:
        """Run everything again: a statement that failed may have changed values."""
        self.environments = [_environment(self.columns, row) for row in self.calls]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number, environment in enumerate(self.environments):
                torch.manual_seed(number)
                for statement in (*self.setup, *self.body):
                    _execute(statement, environment)

    def _runs(self, statement: Statement) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for environment in self.environments:
                    _execute(statement, environment)
            except Exception:
                return False
        return True

    def _is_fit(self, statement: Statement) -> bool:
        """Whether what it made, or wrote, is small enough in every sense."""
        changed = [statement.target] if statement.target else sorted(statement.reads())
        for environment in self.environments:
            for name in changed:
                for tensor in _tensors(environment.get(name)):
                    if tensor.numel() > _ELEMENTS or tensor.dim() > 5:
                        return False
                    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
                        continue
                    # Autograd refuses to read some views that were written into.
                    tensor = tensor.detach()
                    # Infinities may come from empty reductions; NaN of large numbers is no use.
                    wild = tensor.abs().nan_to_num(0, 0, 0)
                    if tensor.numel() and float(wild.max()) > _LARGEST:
                        return False
                    tame = "arguments.special" not in self.features
                    if tame and not bool(tensor.isfinite().all()) and self.rng.random() < 0.7:
                        return False
        return True

    def _mark(self, statement: Statement, rough: bool, drawn: bool) -> None:
        reads = statement.reads()
        rough = rough or any(self.is_rough(name) for name in reads)
        drawn = drawn or any(self.is_drawn(name) for name in reads)
        changed = [statement.target] if statement.target else sorted(reads)
        if "out=" in statement.text or "_(" in statement.text:
            changed = [*changed, *sorted(reads)]
        for flag, marked in ((rough, self.rough), (drawn, self.drawn)):
            if flag:
                marked.update(name for name in changed if name)

    # -- looking -----------------------------------------------------------------------------------

    def is_rough(self, name: str) -> bool:
        """Whether its values are rounded, so that nothing should hang on the last bit of them."""
        return self._lies_among(name, self.rough)

    def is_drawn(self, name: str) -> bool:
        """Whether its values are random."""
        return self._lies_among(name, self.drawn)

    def share_memory(self, name: str, *others: str) -> bool:
        """Whether a value lies in the memory of one of the others, or is it."""
        return self._lies_among(name, others)

    def _lies_among(self, name: str, marked: Collection[str]) -> bool:
        """Whether a value is a marked one, or lies in the memory of one."""
        if name in marked:
            return True
        # Of the values as they are now: a restart makes all of them anew.
        found = {_memory(tensor) for other in marked for tensor in self._memories(other)}
        return any(_memory(tensor) in found for tensor in self._memories(name))

    def _memories(self, name: str) -> list[torch.Tensor]:
        return _tensors(self.environments[0].get(name))

    def value(self, name: str) -> Any:
        """Its value in the first call."""
        return self.environments[0][name]

    def values(self, name: str) -> list[Any]:
        """Its values in all calls."""
        return [environment[name] for environment in self.environments]

    def tensors(self, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> list[str]:
        """The tensors that fit in all calls."""
        with torch.no_grad():  # Gradients of floats that are viewed as integers have no type.
            return [
                name
                for name in self.visible
                if all(
                    isinstance(value, torch.Tensor) and fits(value) for value in self.values(name)
                )
            ]

    def tensor(self, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> Name:
        """One of them; later ones more often.

        Raises:
            Unfit: there is none.
        """
        return Name(self.pick(self.tensors(fits)))

    def target(self, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> Name:
        """A tensor to write into: often an argument."""
        found = self.tensors(fits)
        arguments = [name for name in found if name in self.parameters]
        return Name(
            self.rng.choice(arguments) if arguments and self.chance(0.4) else self.pick(found)
        )

    def exact(self, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> Name:
        """A tensor whose values are not rounded."""
        found = [name for name in self.tensors(fits) if not self.is_rough(name)]
        return Name(self.pick([name for name in found if not self.is_drawn(name)]))

    def pick(self, pool: Sequence[Any]) -> Any:
        """One of them; later ones more often."""
        if not pool:
            raise Unfit
        if self.rng.random() < 0.5:
            pool = pool[-3:]
        return self.rng.choice(pool)

    def beside(self, name: Name, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> Name:
        """A tensor that broadcasts to the shape of another."""
        shapes = [value.shape for value in self.values(name.name)]

        def broadcasts(candidate: str) -> bool:
            return all(
                _broadcasts(value.shape, shape)
                for value, shape in zip(self.values(candidate), shapes, strict=True)
            )

        return Name(self.pick([found for found in self.tensors(fits) if broadcasts(found)]))

    def like(self, name: Name, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> Name:
        """A tensor of the same shape as another."""
        shapes = [value.shape for value in self.values(name.name)]
        found = [
            candidate
            for candidate in self.tensors(fits)
            if [value.shape for value in self.values(candidate)] == shapes
        ]
        return Name(self.pick(found))

    def dim(self, name: Name, smallest: int = 0) -> int:
        """A dimension of a tensor, counted from the front or the back."""
        shapes = [value.shape for value in self.values(name.name)]
        rank = len(shapes[0])
        if any(len(shape) != rank for shape in shapes):
            raise Unfit
        dims = [at for at in range(rank) if all(shape[at] >= smallest for shape in shapes)]
        if not dims:
            raise Unfit
        found = self.rng.choice(dims)
        return found - rank if self.rng.random() < 0.25 else found

    def extent(self, name: Name, dim: int) -> int:
        """The smallest size of a dimension over all calls."""
        return min(self.sizes(name, dim))

    def sizes(self, name: Name, dim: int) -> list[int]:
        """The size of a dimension in each call.

        Raises:
            Unfit: the tensor has no such dimension in one of them.
        """
        shapes = [value.shape for value in self.values(name.name)]
        if not all(-len(shape) <= dim < len(shape) for shape in shapes):
            raise Unfit
        return [int(shape[dim]) for shape in shapes]

    def chance(self, share: float) -> bool:
        """True in so many cases."""
        return self.rng.random() < share

    def integer(self, low: int, high: int, name: Name | None = None, dim: int = 0) -> Operand:
        """A number between bounds, in all calls: a literal, an argument, or made of a size."""
        options: list[Operand] = []
        for column in self.parameters:
            found = [environment.get(column) for environment in self.environments]
            if all(type(item) is int and low <= item <= high for item in found):
                options.append(Name(column))
        if name is not None:
            sizes = self.sizes(name, dim)
            for text, value in (
                (f"{{0}}.shape[{dim}] // 2", [size // 2 for size in sizes]),
                (f"{{0}}.shape[{dim}] - 1", [size - 1 for size in sizes]),
                (f"{{0}}.shape[{dim}]", sizes),
            ):
                if all(low <= item <= high for item in value):
                    options.append(Code(text, (name,)))
        if options and self.chance(self._share):
            return self.rng.choice(options)
        if low > high:
            raise Unfit
        return self.rng.randint(low, high)

    def integers(self) -> list[str]:
        """Parameters that are whole numbers."""
        return [name for name in self.parameters if type(self.value(name)) is int]

    def number(self, dtype: torch.dtype) -> Operand:
        """A Python number that keeps a type: a literal or an argument."""
        kinds: tuple[type, ...] = (bool, int)
        if dtype.is_floating_point or dtype.is_complex:
            kinds = (bool, int, float)
        if dtype is torch.bool:
            kinds = (bool,)
        names = [
            name
            for name in self.parameters
            if type(self.environments[0].get(name)) in kinds and name in self.columns
        ]
        if names and self.chance(self._share):
            return Name(self.rng.choice(names))
        if bool in kinds and (dtype is torch.bool or self.chance(0.05)):
            return self.rng.choice([True, False])
        if float in kinds and self.chance(0.6):
            return self.rng.choice([0.5, -1.5, 2.0, 0.25, 1.0, -0.0])
        return self.rng.choice([1, 2, 3, -1, 0, 5]) if dtype is not torch.uint8 else 2

    def program(
        self, result: Operand, backward: str, afterwards: tuple[str, ...], where: tuple[int, int]
    ) -> Program:
        """What was made."""
        return Program(
            self.columns,
            self.calls,
            tuple(self.setup),
            tuple(self.parameters),
            tuple(self.body),
            result,
            backward,
            afterwards,
            bool(self.drawn),
            where,
            frozenset(self.features),
        )


class Unfit(Exception):
    """There is nothing here that a production could use."""


def _environment(columns: Sequence[str], row: Sequence[Any]) -> Environment:
    return {
        **values.NAMES,
        **dict(zip(columns, row, strict=True)),
    }


_CODES: dict[str, Any] = {}


def _execute(statement: Statement, environment: Environment) -> None:
    source = statement.source()
    code = _CODES.get(source)
    if code is None:
        if len(_CODES) > 10000:
            _CODES.clear()
        code = _CODES[source] = compile(source, "<draft>", "exec")
    exec(code, environment)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    if len(one) > len(other):
        return False
    return all(
        left in (1, right) for left, right in zip(reversed(one), reversed(other), strict=False)
    )


def is_float(value: torch.Tensor) -> bool:
    """A floating type."""
    return value.dtype.is_floating_point


def is_number(value: torch.Tensor) -> bool:
    """Any type but bool."""
    return value.dtype is not torch.bool


def is_real(value: torch.Tensor) -> bool:
    """Neither bool nor complex."""
    return value.dtype is not torch.bool and not value.dtype.is_complex
