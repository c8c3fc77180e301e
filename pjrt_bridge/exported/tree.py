"""Nested lists, tuples and dicts around the tensors of a call, as data.

Containers of other classes come back as the plain ones here: a saved model runs where the classes
are not installed. The class that a container had is kept as a note.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pjrt_bridge.errors import DataError, SavedModelError, SignatureMismatch
from pjrt_bridge.wrong_arguments import checked_methods

LEVELS = 100
"""Containers within containers that are read."""

NodeKind = Literal["leaf", "none", "list", "tuple", "dict"]


@checked_methods
@dataclass(frozen=True)
class Tree:
    """One container, or one leaf of it.

    Attributes:
        kind: what it is.
        leaf: index of a leaf, else -1.
        items: what a container holds.
        keys: of a dict, in the order of its items.
        origin: the class that the container had, where it was none of Python's own.
    """

    kind: NodeKind
    leaf: int = -1
    items: tuple[Tree, ...] = ()
    keys: tuple[str, ...] = ()
    origin: str = ""

    def flatten(self, value: Any, where: str) -> dict[int, Any]:
        """The leaves of a value that is built like this, by index.

        Args:
            value: lists count as tuples and the other way round; a dict is any mapping.
            where: name of the value in error messages.

        Raises:
            SignatureMismatch: the value is built in another way.
        """
        if self.kind == "leaf":
            return {self.leaf: value}
        if self.kind == "none":
            if value is not None:
                raise SignatureMismatch(f"{where}: found a {_kind(value)}, expected None")
            return {}
        found: dict[int, Any] = {}
        if self.kind == "dict":
            if not isinstance(value, Mapping) or set(value) != set(self.keys):
                keys = f" of {list(value)}" if isinstance(value, Mapping) else ""
                raise SignatureMismatch(
                    f"{where}: found a {_kind(value)}{keys}, expected a dict of {list(self.keys)}"
                )
            for key, item in zip(self.keys, self.items, strict=True):
                found |= item.flatten(value[key], f"{where}[{key!r}]")
            return found
        if not isinstance(value, (list, tuple)) or len(value) != len(self.items):
            size = f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
            raise SignatureMismatch(
                f"{where}: found a {_kind(value)}{size}, expected a {self.kind} of "
                f"{len(self.items)}"
            )
        for index, item in enumerate(self.items):
            found |= item.flatten(value[index], f"{where}[{index}]")
        return found

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The value that has these leaves.

        Raises:
            DataError: there are fewer.
        """
        if self.kind == "leaf":
            if self.leaf >= len(leaves):
                raise DataError(f"found {len(leaves)} leaves, expected {self.leaf + 1} or more")
            return leaves[self.leaf]
        if self.kind == "none":
            return None
        items = [item.unflatten(leaves) for item in self.items]
        if self.kind == "dict":
            return dict(zip(self.keys, items, strict=True))
        return items if self.kind == "list" else tuple(items)

    @property
    def leaves(self) -> tuple[int, ...]:
        """Indices of all leaves, in order."""
        if self.kind == "leaf":
            return (self.leaf,)
        return tuple(leaf for item in self.items for leaf in item.leaves)

    def paths(self, name: str) -> dict[int, str]:
        """The place of each leaf in Python's notation, by index: `x['w'][0]` for the name `x`."""
        if self.kind == "leaf":
            return {self.leaf: name}
        keys = [repr(key) for key in self.keys] or range(len(self.items))
        return {
            leaf: path
            for key, item in zip(keys, self.items, strict=False)
            for leaf, path in item.paths(f"{name}[{key}]").items()
        }

    def to_json(self) -> Any:
        """Data for JSON: a number is a leaf, null is None, containers name their kind."""
        if self.kind == "leaf":
            return self.leaf
        if self.kind == "none":
            return None
        items = [item.to_json() for item in self.items]
        inside = dict(zip(self.keys, items, strict=True)) if self.kind == "dict" else items
        return {self.kind: inside, **({"class": self.origin} if self.origin else {})}

    @classmethod
    def from_json(cls, data: Any) -> Tree:
        """The tree that `to_json` described.

        Raises:
            SavedModelError: the data has another form.
        """
        return _from_json(data, 0)


def _from_json(data: Any, depth: int) -> Tree:
    if depth > LEVELS:
        raise SavedModelError(
            f"a nesting of tensors: found more than {LEVELS} levels, expected {LEVELS} at most"
        )
    if data is None:
        return Tree("none")
    if type(data) is int and data >= 0:
        return Tree("leaf", leaf=data)
    origin = data.get("class", "") if isinstance(data, dict) else None
    if isinstance(origin, str):
        match data:
            case {"dict": dict() as found}:
                items = tuple(_from_json(item, depth + 1) for item in found.values())
                return Tree("dict", items=items, keys=tuple(found), origin=origin)
            case {"list": list() as found} | {"tuple": list() as found}:
                kind: NodeKind = "list" if "list" in data else "tuple"
                items = tuple(_from_json(item, depth + 1) for item in found)
                return Tree(kind, items=items, origin=origin)
    raise SavedModelError(
        f"a nesting of tensors: found {reprlib.repr(data)}, expected a number from 0 up, null, or "
        "an object with the key 'dict', 'list' or 'tuple'"
    )


def tree_of(value: Any, leaves: list[Any]) -> Tree:
    """The tree of a value of Python's own containers; its leaves are appended to the list."""
    if value is None:
        return Tree("none")
    if isinstance(value, dict):
        items = tuple(tree_of(item, leaves) for item in value.values())
        return Tree("dict", items=items, keys=tuple(map(str, value)))
    if isinstance(value, (list, tuple)):
        kind: NodeKind = "list" if isinstance(value, list) else "tuple"
        return Tree(kind, items=tuple(tree_of(item, leaves) for item in value))
    leaves.append(value)
    return Tree("leaf", leaf=len(leaves) - 1)


def _kind(value: Any) -> str:
    return type(value).__name__
