"""Runs a function on the arguments of each call, and notes everything that can be seen of it."""

from __future__ import annotations

import itertools
import linecache
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pjrt_bridge.torch_interop import compat
from tests.differential import using, values
from tests.differential.drawing import draws
from tests.differential.ir import Program
from tests.differential.reading import copied, equal, leaves, saved, share

_MARKED = 10
"""So many tensors of a call are written into at most, to see who shares memory."""

_MARKED_ON_DEVICE = 2
"""As `_MARKED`, on torch's device `pjrt`, where each write may be a program to compile."""

_counter = itertools.count()


@dataclass(frozen=True)
class Seen:
    """A tensor at one moment.

    Attributes:
        dtype: of it.
        shape: of it.
        strides: of it.
        offset: of its first element in its storage.
        requires_grad: as autograd says.
        bits: is_conj and is_neg.
        resizable: whether its storage can be resized.
        value: a copy, without conj and neg bits.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    requires_grad: bool
    bits: tuple[bool, bool]
    resizable: bool
    value: torch.Tensor

    @staticmethod
    def of(tensor: torch.Tensor, value: torch.Tensor | None = None) -> Seen:
        """What is seen of a tensor now, whose value may be known."""
        return Seen(
            tensor.dtype,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.storage_offset(),
            tensor.requires_grad,
            (tensor.is_conj(), tensor.is_neg()),
            # On torch's device `pjrt` a tensor that is resized gets another storage.
            tensor.device.type != "cpu" or tensor.untyped_storage().resizable(),
            copied(tensor) if value is None else value,
        )


@dataclass
class Call:
    """What one call did.

    Attributes:
        error: the exception, None where there was none.
        error_in: "call" or "backward".
        structure: of the results.
        results: leaves by their places.
        arguments: what the arguments were made of, afterwards, by name.
        held: what lists, tuples and dicts among the arguments hold afterwards, by place: the name
            of an argument, or what else was put there.
        used: results and arguments after the caller used the results, and whether that raised.
        written: names of arguments whose version changed.
        gradients: by name of the argument.
        same: pairs of places that are one object.
        shared: pairs of places over the same memory, with the distance of their first bytes.
        related: those pairs of them that autograd knows as views of one tensor.
        alone: places of results whose storage no other tensor has, not even an empty one.
        writes: for each place that is written into, the places that change.
        later: places of results that a later call changed.
        draws: for larger random results, the shares that differ with and without a new seed.
    """

    error: BaseException | None = None
    error_in: str = ""
    structure: str = ""
    results: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    held: dict[str, Any] = field(default_factory=dict)
    used: dict[str, Any] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, Any] = field(default_factory=dict)
    same: set[tuple[str, str]] = field(default_factory=set)
    shared: dict[tuple[str, str], int] = field(default_factory=dict)
    related: set[tuple[str, str]] = field(default_factory=set)
    alone: set[str] = field(default_factory=set)
    writes: dict[str, Any] = field(default_factory=dict)
    later: set[str] = field(default_factory=set)
    draws: dict[str, tuple[float, float]] = field(default_factory=dict)


def execute(source: str) -> dict[str, Any]:
    """The namespace of a module of this source, which Dynamo can see."""
    name = f"<program {next(_counter)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace: dict[str, Any] = {
        **values.NAMES,
        "__name__": "program",
        "inf": float("inf"),
        "nan": float("nan"),
    }
    exec(compile(source, name, "exec"), namespace)
    return namespace


def observe(
    function: Callable[..., Any], arguments: Callable[..., dict[str, Any]], program: Program
) -> list[Call]:
    """Call a function once for each row of a program, on new arguments, and look.

    Args:
        function: that of the program, eager or compiled.
        arguments: makes those of a row, and all that they are made of.
        program: says how the function is called, and what is done with its results. Of a random
            one nothing is said of what changes values.
    """
    found: list[Call] = []
    open_calls: list[_Open] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, row in enumerate(program.calls):
            torch.manual_seed(number)
            made = arguments(*row)
            opened = _Open(made)
            opened.call(function, [made[name] for name in program.parameters])
            weighted = using.WEIGHTED in program.afterwards
            if weighted:
                opened.weigh()
            if program.backward != "twice" and (program.backward or weighted):
                opened.differentiate(program.backward or "grad")
            opened.use([name for name in program.afterwards if name in using.USES])
            found.append(opened.seen)
            open_calls.append(opened)
        if program.backward == "twice":
            for opened in open_calls:
                opened.differentiate("backward")
        for number, opened in enumerate(open_calls):
            opened.look_later(open_calls[number + 1 :])
        for opened in open_calls:
            opened.look(program.random)
        if program.random and program.calls and found[0].error is None:
            found[0].draws = draws(function, arguments, program)
    return found


class _Open:
    """A call whose tensors are alive."""

    def __init__(self, made: dict[str, Any]) -> None:
        self._made = {key: item for key, item in made.items() if isinstance(item, torch.Tensor)}
        self._containers = {
            key: item for key, item in made.items() if isinstance(item, (list, tuple, dict))
        }
        self._versions = {key: item._version for key, item in self._made.items()}
        self._tree: Any = None
        self._leaves: dict[str, Any] = {}
        self._held: dict[str, torch.Tensor] = {}
        self._values: dict[str, torch.Tensor] = {}
        self._weights: dict[str, torch.Tensor] = {}
        self.seen = Call()

    def call(self, function: Callable[..., Any], given: list[Any]) -> None:
        """Call it, and copy what it gives."""
        seen = self.seen
        try:
            self._tree = function(*given)
        except Exception as error:
            seen.error, seen.error_in = error, "call"
            error.__traceback__ = None
        seen.structure = str(pytree.tree_structure(self._tree))
        self._leaves = dict(leaves("result", self._tree))
        seen.results = {key: _seen(leaf) for key, leaf in self._leaves.items()}
        self._remember()
        for name, tensor in self._made.items():
            seen.arguments[name] = Seen.of(tensor)
            seen.written[name] = tensor._version - self._versions[name]
        names = {id(tensor): name for name, tensor in self._made.items()}
        for key, container in self._containers.items():
            for place, leaf in leaves(key, container):
                seen.held[place] = names.get(id(leaf)) or _seen(leaf)
                if isinstance(leaf, torch.Tensor) and id(leaf) not in names:
                    self._held[place] = leaf

    def _remember(self) -> None:
        """Note the values that results have until somebody writes into them."""
        self._values = {key: copied(leaf) for key, leaf in _tensors(self._leaves).items()}

    def weigh(self) -> None:
        """Multiply each result in place by a weight of its own, which has a gradient."""
        if self.seen.error is not None:
            return
        for place, leaf in _tensors(self._leaves).items():
            error, weight = using.weigh(leaf)
            self.seen.used[f"{place} {using.WEIGHTED}"] = error
            if weight is not None:
                self._weights[f"weight of {place}"] = weight
        for place, leaf in _tensors(self._leaves).items():
            self.seen.used[f"{place} after weights"] = _seen(leaf)
        self._remember()

    def differentiate(self, how: str) -> None:
        """Compute gradients of a weighted sum of all results, or of every other one."""
        seen = self.seen
        outputs = [
            leaf
            for leaf in _tensors(self._leaves).values()
            if leaf.requires_grad and leaf.dtype.is_floating_point
        ]
        if seen.error is not None or not outputs:
            return
        if how == "part":
            outputs = outputs[::2]
        inputs = {
            key: item
            for key, item in (*self._made.items(), *self._weights.items())
            if item.requires_grad and item.is_leaf
        }
        try:
            total = sum(
                (leaf * values.numbers(leaf.shape, leaf.dtype, at)).sum().double()
                for at, leaf in enumerate(outputs)
            )
            if how == "grad":
                found = torch.autograd.grad(total, list(inputs.values()), allow_unused=True)
            else:
                total.backward()  # type: ignore[union-attr]
                found = tuple(item.grad for item in inputs.values())
        except Exception as error:
            seen.error, seen.error_in = error, "backward"
            error.__traceback__ = None
            return
        seen.gradients = {
            name: _seen(gradient) for name, gradient in zip(inputs, found, strict=True)
        }

    def use(self, afterwards: Sequence[str]) -> None:
        """Do with each result what the caller does; see what becomes of results and arguments."""
        if self.seen.error is not None or not afterwards:
            return
        tensors = _tensors(self._leaves)
        for place, leaf in tensors.items():
            for name in afterwards:
                error = using.use(name, leaf)
                self.seen.used[f"{place} {name}"] = error
        for place, tensor in {**tensors, **self._made, **self._held}.items():
            self.seen.used[f"{place} after use"] = Seen.of(tensor)
        self._remember()

    def look_later(self, others: Sequence[_Open]) -> None:
        """Find results that a later call, or the gradients, changed, or may change."""
        for name, leaf in _tensors(self._leaves).items():
            if not equal(self._values[name], copied(leaf)):
                self.seen.later.add(name)
            if not leaf.numel():
                continue
            for other in others:
                for later in _tensors(other._leaves).values():
                    if later.numel() and share(leaf, later):
                        self.seen.later.add(name)

    def look(self, random: bool) -> None:
        """Find out who shares memory with whom, also by writing."""
        seen = self.seen
        tensors = {**_tensors(self._leaves), **self._held}
        everything = {**self._made, **tensors}
        marked = _MARKED
        if any(item.device.type != "cpu" for item in everything.values()):
            marked = _MARKED_ON_DEVICE
        for one, other in itertools.combinations(everything, 2):
            if one in self._made and other in self._made:
                continue
            left, right = everything[one], everything[other]
            if left is right:
                seen.same.add((one, other))
            if left.numel() and right.numel() and share(left, right):
                seen.shared[one, other] = right.data_ptr() - left.data_ptr()
                if _base(left) is _base(right):
                    seen.related.add((one, other))
        objects = {id(item): item for item in everything.values()}
        storages = Counter(map(compat.storage_identity, objects.values()))
        given = {id(item) for item in self._made.values()}
        seen.alone = {
            name
            for name, leaf in tensors.items()
            if id(leaf) not in given and storages[compat.storage_identity(leaf)] == 1
        }
        # Those first that share memory with another one.
        sharing = {name for pair in seen.shared for name in pair}
        for name in sorted(tensors, key=lambda name: name not in sharing)[:marked]:
            seen.writes[name] = _written(everything, name)
        for name in list(self._made)[: marked if tensors else 0]:
            found = _written(everything, name)
            if isinstance(found, frozenset):
                seen.writes[name] = frozenset(found & tensors.keys())
        if not random:
            self._outlive(tensors)

    def _outlive(self, tensors: dict[str, Any]) -> None:
        """Results stay as they are when everything else is gone."""
        kept = {name: (leaf, copied(leaf)) for name, leaf in tensors.items()}
        self._made.clear()
        self._containers.clear()
        self._held.clear()
        self._leaves.clear()
        self._tree = None
        tensors.clear()
        for leaf, value in kept.values():
            # What reads freed memory would show these.
            torch.full((max(leaf.numel(), 1),), 77, dtype=leaf.dtype)
            if not equal(copied(leaf), value):
                self.seen.later.add("outlived")


def _tensors(leaves: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {key: leaf for key, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}


def _base(tensor: torch.Tensor) -> torch.Tensor:
    """What autograd knows a tensor as a view of, or the tensor."""
    return tensor if tensor._base is None else tensor._base


def _seen(leaf: Any) -> Any:
    """A result as the user reads it."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    # On a device that is a program of its own.
    return Seen.of(leaf, None if leaf.device.type == "cpu" else copied(leaf.detach().cpu()))


def _written(everything: Mapping[str, torch.Tensor], name: str) -> frozenset[str] | str:
    """Which tensors change when one is written into; or the kind of error."""
    target = everything[name]
    if target.numel() == 0:
        return frozenset()
    before = {key: copied(item) for key, item in everything.items()}
    restore = saved(target)
    try:
        with torch.no_grad():
            if target.dtype is torch.bool:
                target.fill_(not before[name].view(-1)[0])
            else:
                target.fill_(37)
    except Exception as error:
        return type(error).__name__
    changed = frozenset(
        key
        for key, item in everything.items()
        if key != name and not equal(copied(item), before[key])
    )
    restore()
    return changed
