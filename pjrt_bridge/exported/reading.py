"""Saved models, read from their folders: each value of the manifest with its type and its limits.

Nothing in a folder is taken for what it should be. What is of another form, out of range or does
not go together is a `SavedModelError` that names the file and the field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from pjrt_bridge import dtypes
from pjrt_bridge.errors import SavedModelError
from pjrt_bridge.exported import weights as tensors
from pjrt_bridge.exported.checks import Check
from pjrt_bridge.exported.fields import JsonField
from pjrt_bridge.exported.files import Array, map_file
from pjrt_bridge.exported.interface import (
    Argument,
    ConstantLeaf,
    Dimension,
    Interface,
    Slot,
    TensorLeaf,
    Weight,
)
from pjrt_bridge.exported.manifest import Manifest
from pjrt_bridge.exported.specialization import Specialization
from pjrt_bridge.exported.stored import restore
from pjrt_bridge.exported.tree import Tree

WEIGHTS = "weights.safetensors"


def read_tensors(
    folder: Path, manifest: Manifest, weights: Mapping[str, Weight]
) -> dict[str, Array]:
    """The elements of weights, mapped.

    Raises:
        SavedModelError: the file is damaged, or of another form.
    """
    if not weights:
        return {}
    path = folder / WEIGHTS
    data = map_file(path)
    manifest.check(path, data.data)
    return tensors.read(path, data)


def read_interface(model: JsonField) -> Interface:
    """Read the model's interface.

    Raises:
        SavedModelError: a field of another form.
    """
    inputs = tuple(map(_leaf, model["inputs"].items()))
    arguments = []
    seen: list[int] = []
    for item in model["arguments"].items():
        tree = _tree(item["tree"], len(inputs))
        arguments.append(Argument(item["name"].text(), tree))
        seen += tree.leaves
    if len(set(seen)) != len(seen) or len({item.name for item in arguments}) != len(arguments):
        raise model["arguments"].error("arguments of different names, with different inputs")
    count = min((len(one["outputs"].items()) for one in model["programs"].items()), default=0)
    return Interface(tuple(arguments), inputs, _tree(model["outputs"], count))


def read_weights(model: JsonField) -> dict[str, Weight]:
    """The weights by name, without their elements.

    Raises:
        SavedModelError: a field of another form.
    """
    return {
        name: Weight(
            weight["kind"].choice("parameter", "buffer", "constant", "optimizer"),
            weight["dtype"].parsed(dtypes.of),
            weight["shape"].numbers(),
            weight["tensor"].text(),
        )
        for name, weight in model["weights"].members().items()
    }


def read_symbols(model: JsonField) -> dict[str, tuple[int | None, int | None]]:
    """For each symbolic size its limits.

    Raises:
        SavedModelError: a field of another form.
    """
    found = {}
    for name, field in model["symbols"].members().items():
        least, most = field.items(2)
        found[name] = (least.optional_number(), most.optional_number())
    return found


def read_programs(
    folder: Path,
    manifest: Manifest,
    interface: Interface,
    weights: Mapping[str, Weight],
    *,
    trusted: bool,
) -> tuple[Specialization, ...]:
    """The programs, with what goes in and out of each.

    Args:
        folder: of the model.
        manifest: of the folder.
        interface: how the model is called.
        weights: by name.
        trusted: files that run code when they are loaded may be loaded.

    Raises:
        SavedModelError: a file is damaged or of another form, is not trusted, or a field is of
            another form.
    """
    programs = manifest.model["programs"].items()
    if not programs:
        raise manifest.model["programs"].error("one program or more")
    slots = _SlotReader(interface, weights)
    found = []
    for field in programs:
        program = restore(folder, manifest, field, trusted=trusted)
        updates = field["updates"].items()
        checks = field.find("checks")
        results = len(updates)
        one = Specialization(
            program,
            tuple(slots.parameter(item) for item in field["parameters"].items()),
            tuple(map(slots.update, updates)),
            tuple(slots.value(item, results) for item in field["outputs"].items()),
            {name: size.number() for name, size in field["sizes"].members().items()},
            tuple(slots.check(item, results) for item in checks.items()) if checks else (),
        )
        slots.check_types(one, field)
        found.append(one)
    return tuple(found)


def check_weights(file: Path, weights: Mapping[str, Weight], arrays: Mapping[str, Array]) -> None:
    """Check that each weight has its elements.

    Raises:
        SavedModelError: one has not.
    """
    for name, weight in weights.items():
        array = arrays.get(weight.tensor)
        if array is None:
            raise SavedModelError(f"{file}: weight {name!r}: tensor {weight.tensor!r} is missing")
        if array.shape != weight.shape or dtypes.from_numpy(array.dtype) != weight.dtype:
            raise SavedModelError(
                f"{file}: weight {name!r}: found {array.dtype}{list(array.shape)}, needed "
                f"{weight.dtype}{list(weight.shape)}"
            )


class _SlotReader:
    """Reads where values come from and go to."""

    def __init__(self, interface: Interface, weights: Mapping[str, Weight]) -> None:
        self._inputs = interface.inputs
        self._weights = weights

    def parameter(self, field: JsonField) -> Slot:
        """Read the source of a parameter."""
        return self._read(field, 0, "weight", "input", "key")

    def _read(self, field: JsonField, results: int, *kinds: str) -> Slot:
        """A slot of one of some kinds."""
        name, of = field.items(2)
        match kind := name.choice(*kinds):
            case "weight":
                return Slot("weight", of.text())
            case "input":
                index = of.number(0, len(self._inputs) - 1)
                if not isinstance(self._inputs[index], TensorLeaf):
                    raise of.error("the index of an input that is a tensor")
                return Slot("input", index)
            case "key":
                return Slot("key", of.number())
            case "result":
                return Slot("result", of.number(0, results - 1))
        assert kind == "constant"
        return Slot("constant", of.scalar())

    def update(self, field: JsonField) -> Slot | None:
        """Read which argument or weight a result is the new value of."""
        if field.value is None:
            return None
        return self._known(field, self._read(field, 0, "weight", "input"))

    def value(self, field: JsonField, results: int) -> Slot:
        """Read the source of a leaf of the model's results."""
        slot = self._read(field, results, "result", "input", "weight", "constant")
        return self._known(field, slot)

    def check(self, field: JsonField, results: int) -> Check:
        """An assertion."""
        return Check(
            self.value(field["value"], results),
            field["holds"].choice("nonzero", "zero"),
            field["message"].text(),
            field["source"].optional_text(),
        )

    def check_types(self, one: Specialization, field: JsonField) -> None:
        """Check that a program takes and gives what the manifest says."""
        counts = (len(one.parameters), len(one.updates))
        needed = (len(one.types), one.results)
        if counts != needed:
            raise SavedModelError(
                f"{field.file}: program {one.program.name!r}: found {counts[0]} parameters and "
                f"{counts[1]} results, needed {needed[0]} and {needed[1]}"
            )
        for slot, type in zip(one.parameters, one.types, strict=True):
            if slot.kind == "weight":
                given = self._weights.get(slot.of)
                if given is None or (given.shape, given.dtype) != (type.shape, type.dtype):
                    found = "none" if given is None else f"{given.dtype}{list(given.shape)}"
                    raise SavedModelError(
                        f"{field.file}: weight {slot.of!r}: found {found}, needed {type}"
                    )
            elif slot.kind == "input":
                leaf = self._inputs[slot.of]
                assert isinstance(leaf, TensorLeaf)
                if leaf.dtype != type.dtype or not _fits(leaf.shape, type.shape):
                    raise SavedModelError(
                        f"{field.file}: input {leaf.name!r}: found {leaf}, needed {type}"
                    )

    def _known(self, field: JsonField, slot: Slot) -> Slot:
        if slot.kind == "weight" and slot.of not in self._weights:
            raise field.error("the name of a weight")
        return slot


def _fits(shape: Collection[Dimension], sizes: Collection[int]) -> bool:
    """Whether a shape, in which sizes may be symbols, is that of a parameter."""
    return len(shape) == len(sizes) and all(
        isinstance(one, str) or one == other for one, other in zip(shape, sizes, strict=True)
    )


def _leaf(field: JsonField) -> TensorLeaf | ConstantLeaf:
    constant = field.find("constant")
    name = field["name"].text()
    if constant is not None:
        return ConstantLeaf(name, constant.scalar())
    shape = tuple(
        item.text() if isinstance(item.value, str) else item.number()
        for item in field["shape"].items()
    )
    return TensorLeaf(name, field["dtype"].parsed(dtypes.of), shape)


def _tree(field: JsonField, leaves: int) -> Tree:
    tree = field.parsed(Tree.from_json)
    if any(leaf >= leaves for leaf in tree.leaves):
        raise field.error(f"numbers of leaves below {leaves}")
    return tree
