"""Artifacts of `jax.export`, read without JAX: a flatbuffer around a portable artifact.

Of its fields those are read that say how the program is called. Avals became shared between
arguments in April 2026; both forms are read.

Source: the table `Exported` of JAX's serialization schema (jax/_src/export/serialization.fbs), and
JAX's page "Exporting and serializing staged-out computations", "Module calling convention".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.exported import Tree
from pjrt_bridge.jax_interop.flatbuffer import Malformed, Table, root

# Fields by their place in the schema.
_FUNCTION_NAME, _IN_TREE, _IN_AVALS, _OUT_TREE = 1, 2, 3, 4
_NR_DEVICES_SHORT, _PLATFORMS, _ORDERED_EFFECTS = 6, 9, 10
_MODULE, _CALLING_CONVENTION, _KEPT, _NR_DEVICES = 13, 14, 15, 18
_UNIQUE_AVALS, _IN_AVALS_IDXS = 19, 22
_TREE_KIND, _TREE_CHILDREN, _TREE_NAMES, _TREE_CUSTOM = 0, 1, 2, 3
_AVAL_SHAPE, _AVAL_DTYPE = 1, 2

_DTYPES = (
    *("i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f16", "f32", "f64"),
    *("complex<f32>", "complex<f64>", "bf16", "i4", "ui4", "f8E4M3B11FNUZ", "f8E4M3FN"),
    *("f8E4M3FNUZ", "f8E5M2", "f8E5M2FNUZ", "", "f8E4M3", "f8E3M4", "f8E8M0FNU", "f4E2M1FN"),
)
"""StableHLO's names in the order of the schema; one has no elements."""

CALLING_CONVENTIONS = range(9, 11)
"""Versions that are understood."""


@dataclass(frozen=True)
class Aval:
    """One argument of the exported function: its element type and its sizes as texts."""

    dtype: DType
    shape: tuple[str, ...]


@dataclass(frozen=True)
class Exported:
    """An exported function of JAX.

    Attributes:
        name: of the function.
        inputs: nesting of (positional arguments, keyword arguments).
        avals: of the leaves of `inputs`.
        outputs: nesting of the results.
        kept: which leaves the module takes.
        platforms: that it was lowered for; if there are several, the module takes the index of one.
        devices: that one call uses.
        module: the portable artifact.
    """

    name: str
    inputs: Tree
    avals: tuple[Aval, ...]
    outputs: Tree
    kept: tuple[int, ...]
    platforms: tuple[str, ...]
    devices: int
    module: bytes


def read(data: bytes) -> Exported:
    """An exported function from the bytes that JAX's `Exported.serialize` gave.

    Raises:
        ProgramError: they are no such thing, are truncated, or follow a calling convention that is
            not known.
    """
    try:
        table = root(data)
        version = table.uint16(_CALLING_CONVENTION)
        found = Exported(
            name=table.text(_FUNCTION_NAME),
            inputs=_tree(table.table(_IN_TREE), []),
            avals=_avals(table),
            outputs=_tree(table.table(_OUT_TREE), []),
            kept=table.uint16s(_KEPT),
            platforms=table.texts(_PLATFORMS),
            devices=table.uint32(_NR_DEVICES) or table.uint16(_NR_DEVICES_SHORT),
            module=table.bytes(_MODULE),
        )
        effects = len(table.tables(_ORDERED_EFFECTS))
    except (Malformed, RecursionError) as error:
        raise ProgramError(f"artifact of jax.export: {error}") from None
    where = f"artifact of jax.export, function {found.name!r}"
    if version not in CALLING_CONVENTIONS:
        raise ProgramError(
            f"{where}: calling convention: found {version}, expected "
            f"{' or '.join(map(str, CALLING_CONVENTIONS))}"
        )
    if effects:
        raise ProgramError(f"{where}: found ordered effects, which need JAX at run time")
    leaves = len(found.inputs.leaves)
    if len(found.avals) != leaves or any(index >= leaves for index in found.kept):
        raise ProgramError(
            f"{where}: found {len(found.avals)} types and parameters {list(found.kept)} for "
            f"{leaves} arguments"
        )
    return found


def _avals(table: Table) -> tuple[Aval, ...]:
    shared = table.tables(_UNIQUE_AVALS)
    if not shared:
        return tuple(map(_aval, table.tables(_IN_AVALS)))
    indices = table.uint32s(_IN_AVALS_IDXS)
    if any(index >= len(shared) for index in indices):
        raise Malformed(f"found type {max(indices)} of {len(shared)}")
    return tuple(_aval(shared[index]) for index in indices)


def _aval(table: Table) -> Aval:
    number = table.uint8(_AVAL_DTYPE)
    name = _DTYPES[number] if number < len(_DTYPES) else ""
    if not name:
        raise Malformed(f"found element type {number}, which arrays on a device cannot have")
    return Aval(dtypes.from_stablehlo(name), table.texts(_AVAL_SHAPE))


def _tree(table: Table, leaves: list[None]) -> Tree:
    kind = table.uint8(_TREE_KIND)
    if kind == 0:
        leaves.append(None)
        return Tree("leaf", leaf=len(leaves) - 1)
    if kind == 1:
        return Tree("none")
    children = table.tables(_TREE_CHILDREN)
    items = tuple(_tree(child, leaves) for child in children)
    match kind:
        case 2:
            return Tree("tuple", items=items)
        case 3:
            return Tree("list", items=items)
        case 4:
            return Tree("dict", items=items, keys=_keys(table.texts(_TREE_NAMES), items))
        case 5:
            return Tree("tuple", items=items, origin=table.text(_TREE_CUSTOM))
    raise Malformed(f"found a container of kind {kind}")


def _keys(names: tuple[str, ...], items: Sequence[Tree]) -> tuple[str, ...]:
    if len(set(names)) != len(items):
        raise Malformed(f"found {len(set(names))} names for {len(items)} entries of a dict")
    return names
