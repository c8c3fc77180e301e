"""Nested arguments and results as leaves in order and a hashable structure.

Tuples, named tuples, lists, dicts with texts as keys, and None are containers; all else is a leaf.
The functions are plain Python, so that Dynamo traces through them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Structure = tuple[Any, ...]
"""A kind, what belongs to it, and the structures within."""

LEAF: Structure = ("leaf",)
_NONE: Structure = ("none",)


def flatten(value: Any, leaves: list[Any]) -> Structure:
    """The structure of a value; its leaves are appended."""
    if value is None:
        return _NONE
    if isinstance(value, dict):
        keys = tuple(sorted(value))
        return ("dict", keys, *[flatten(value[key], leaves) for key in keys])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ("named", type(value), *[flatten(item, leaves) for item in value])
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return (kind, len(value), *[flatten(item, leaves) for item in value])
    leaves.append(value)
    return LEAF


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The value of a structure with these leaves."""
    return _built(structure, iter(leaves))


def _built(structure: Structure, leaves: Iterator[Any]) -> Any:
    kind = structure[0]
    if kind == "leaf":
        return next(leaves)
    if kind == "none":
        return None
    items = [_built(item, leaves) for item in structure[2:]]
    if kind == "dict":
        return dict(zip(structure[1], items, strict=True))
    if kind == "named":
        return structure[1](*items)
    return tuple(items) if kind == "tuple" else items
