"""The interface of an exported model: its arguments, inputs and outputs; as data for JSON too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import SignatureMismatch
from pjrt_bridge.exported.tree import Tree
from pjrt_bridge.wrong_arguments import checked_methods

Dimension = int | str
"""A size, or the text of a symbolic one: `"batch"`, `"2*s0"`."""

ConstantValue = bool | int | float | str | None
"""What an argument may be that is no tensor; it is part of the programs."""

WeightKind = Literal["parameter", "buffer", "constant", "optimizer"]


@dataclass(frozen=True)
class TensorLeaf:
    """A tensor that a call brings or gives.

    Attributes:
        name: unique among the leaves.
        dtype: element type.
        shape: elements per dimension.
    """

    name: str
    dtype: DType
    shape: tuple[Dimension, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class ConstantLeaf:
    """An argument that is no tensor: a call may give this value only, or leave it out."""

    name: str
    value: ConstantValue


@dataclass(frozen=True)
class Argument:
    """One parameter of the exported function: its name, and the nesting of its leaves."""

    name: str
    tree: Tree


@checked_methods
@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a model, as its callers see them.

    Attributes:
        arguments: in the order in which they are given by position.
        inputs: the leaves of all arguments.
        outputs: the nesting of the results.
    """

    arguments: tuple[Argument, ...]
    inputs: tuple[TensorLeaf | ConstantLeaf, ...]
    outputs: Tree

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call, in the order of `inputs`.

        Raises:
            SignatureMismatch: too many arguments, one unknown, given twice, missing or built in
                another way, or another value for a constant.
        """
        names = [argument.name for argument in self.arguments]
        if len(args) > len(names):
            raise SignatureMismatch(f"found {len(args)} arguments, expected {self.described()}")
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                raise SignatureMismatch(f"no argument {name!r}; expected {self.described()}")
            if name in given:
                raise SignatureMismatch(f"argument {name!r} is given twice")
            given[name] = value
        leaves: list[Any] = [
            leaf.value if isinstance(leaf, ConstantLeaf) else None for leaf in self.inputs
        ]
        for argument in self.arguments:
            if argument.name not in given:
                if all(isinstance(self.inputs[i], ConstantLeaf) for i in argument.tree.leaves):
                    continue
                raise SignatureMismatch(
                    f"argument {argument.name!r} is missing; expected {self.described()}"
                )
            found = argument.tree.flatten(given[argument.name], f"argument {argument.name!r}")
            for index, value in found.items():
                leaf = self.inputs[index]
                if isinstance(leaf, ConstantLeaf) and not _same(value, leaf.value):
                    raise SignatureMismatch(
                        f"argument {leaf.name!r}: found {value!r}, expected {leaf.value!r}, which "
                        "is part of the exported program"
                    )
                leaves[index] = value
        return leaves

    def described(self) -> str:
        """The arguments with their types, for error messages."""
        texts = [
            f"{argument.name}: {', '.join(map(self._leaf, argument.tree.leaves)) or 'None'}"
            for argument in self.arguments
        ]
        return f"({'; '.join(texts)})"

    def _leaf(self, index: int) -> str:
        leaf = self.inputs[index]
        return f"{leaf.value!r}" if isinstance(leaf, ConstantLeaf) else str(leaf)


@dataclass(frozen=True)
class Weight:
    """A tensor that is kept with the programs.

    Attributes:
        kind: what the framework calls it.
        dtype: element type.
        shape: elements per dimension.
        tensor: its name in the file; two weights that are one tensor have one name there.
    """

    kind: WeightKind
    dtype: DType
    shape: tuple[int, ...]
    tensor: str


SlotKind = Literal["weight", "input", "key", "result", "constant"]


@dataclass(frozen=True)
class Slot:
    """Where a value comes from or goes to.

    Attributes:
        kind: `"weight"` (by name), `"input"` (by index of the leaf), `"key"` (a new 64-bit number
            in each call, by index), `"result"` (of the program, by index), or `"constant"`.
        of: name, index or value.
    """

    kind: SlotKind
    of: Any


def _same(value: Any, constant: ConstantValue) -> bool:
    return type(value) is type(constant) and bool(value == constant)


def leaf_to_json(leaf: TensorLeaf | ConstantLeaf) -> dict[str, Any]:
    """Data for JSON."""
    if isinstance(leaf, ConstantLeaf):
        return {"name": leaf.name, "constant": leaf.value}
    return {"name": leaf.name, "dtype": leaf.dtype.name, "shape": list(leaf.shape)}
