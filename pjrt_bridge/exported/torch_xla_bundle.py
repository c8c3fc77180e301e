"""Bundles that PyTorch/XLA's exporter wrote, read without PyTorch and PyTorch/XLA.

A bundle is a folder: `functions/NAME.meta` (JSON: types, where each parameter comes from, nesting),
`NAME.bytecode` (a portable artifact) and mostly `NAME.mlir`; `data/` with a file in NumPy's format
for each weight, `constants/` with numbered ones.

Source: PyTorch/XLA 2.9, `torch_xla/stablehlo.py` (`StableHLOFunctionMeta`, `_save_program_bundle`);
for the nesting, PyTorch's `torch.utils._pytree.treespec_dumps`, protocol 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError, SavedModelError, UnsupportedDtype
from pjrt_bridge.exported.files import MANIFEST_LIMIT, Array, open_file, read_file
from pjrt_bridge.exported.interface import (
    Argument,
    ConstantLeaf,
    Interface,
    Slot,
    TensorLeaf,
    Weight,
    WeightKind,
)
from pjrt_bridge.exported.model import ExportedModel
from pjrt_bridge.exported.specialization import Specialization
from pjrt_bridge.exported.tree import LEVELS, NodeKind, Tree
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import Parameter

FUNCTIONS = "functions"
_KINDS: Mapping[str, NodeKind] = {
    "builtins.tuple": "tuple",
    "builtins.list": "list",
    "builtins.dict": "dict",
    "collections.OrderedDict": "dict",
}
_SPEC_PROTOCOL = 1


def is_bundle(folder: Path) -> bool:
    """Whether a folder looks like a bundle."""
    return any((folder / FUNCTIONS).glob("*.meta"))


def read_bundle(
    folder: str | Path, function: str | None = None, *, names: Sequence[str] = ()
) -> ExportedModel:
    """The model in a bundle; its weights are mapped, not copied.

    Args:
        folder: the bundle.
        function: name of the function; may be left out where there is one.
        names: of the arguments by position, which a bundle does not have; `arg0`, `arg1`, ... by
            default.

    Raises:
        SavedModelError: a file is missing, truncated or of another form, or what the files hold
            does not go together.
    """
    path = Path(folder)
    name = _function(path, function)
    where = path / FUNCTIONS / f"{name}.meta"
    meta = _json(where)
    program = _program(path / FUNCTIONS / name)
    try:
        signature = program.signature
    except ProgramError as error:
        raise SavedModelError(f"{path / FUNCTIONS / name}: {error}") from error
    locations = _field(where, meta, "input_locations", list)
    if len(locations) != len(signature.parameters):
        raise SavedModelError(
            f"{where}: input_locations: found {len(locations)}, needed "
            f"{len(signature.parameters)}, one for each parameter of the program"
        )
    reader = _BundleReader(path, where, signature.parameters)
    slots = tuple(reader.slot(index, location) for index, location in enumerate(locations))
    outputs = _tree(where, "output_pytree_spec", meta.get("output_pytree_spec"))
    count = len(signature.results)
    if outputs is None:
        leaves = tuple(Tree("leaf", leaf=at) for at in range(count))
        outputs = leaves[0] if count == 1 else Tree("tuple", items=leaves)
    if len(outputs.leaves) != count:
        raise SavedModelError(
            f"{where}: output_pytree_spec: found {len(outputs.leaves)} leaves, needed {count}, one "
            "for each result of the program"
        )
    arguments = _arguments(where, meta, max(reader.inputs, default=-1) + 1, names)
    return ExportedModel(
        name=name,
        interface=Interface(arguments, reader.leaves(arguments, meta), outputs),
        weights=reader.weights,
        tensors=reader.tensors,
        specializations=(
            Specialization(
                program,
                slots,
                (None,) * count,
                tuple(Slot("result", index) for index in range(count)),
                {},
            ),
        ),
        exporter="torch_xla",
        symbols={},
    )


class _BundleReader:
    """Follows where each parameter comes from.

    Attributes:
        weights: and constants, by name.
        tensors: their elements.
        inputs: the parameter that each leaf of the arguments goes to, by its position.
    """

    def __init__(self, folder: Path, where: Path, parameters: Sequence[Parameter]) -> None:
        self._folder = folder
        self._where = where
        self._parameters = parameters
        self.weights: dict[str, Weight] = {}
        self.tensors: dict[str, Array] = {}
        self.inputs: dict[int, Parameter] = {}

    def slot(self, index: int, location: Any) -> Slot:
        """Where a parameter comes from."""
        parameter = self._parameters[index]
        match location:
            case {"type_": "input_arg", "position": int(position)} if position >= 0:
                self.inputs[position] = parameter
                return Slot("input", position)
            case {"type_": "parameter", "name": str(name)}:
                return self._weight(name, self._folder / "data", name, parameter)
            case {"type_": "constant", "position": int(position)} if position >= 0:
                file = str(position)
                name = f"constant_{position}"
                return self._weight(name, self._folder / "constants", file, parameter)
        raise SavedModelError(
            f"{self._where}: input_locations[{index}]: found {location!r}, needed an input_arg or "
            "constant with its position, or a parameter with its name"
        )

    def _weight(self, name: str, folder: Path, file: str, parameter: Parameter) -> Slot:
        path = folder / file
        # A name comes from the bundle, and so might lead elsewhere.
        if Path(file).name != file:
            raise SavedModelError(
                f"{self._where}: found the weight {name!r}, which is no file name"
            )
        if name not in self.tensors:
            array = _mapped(path)
            try:
                found = dtypes.from_numpy(array.dtype)
            except UnsupportedDtype as error:
                raise SavedModelError(f"{path}: {error}") from error
            type = parameter.type
            if (found, array.shape) != (type.dtype, type.shape):
                raise SavedModelError(
                    f"{path}: found {array.dtype}{list(array.shape)}, needed {type}"
                )
            kind: WeightKind = "parameter" if folder.name == "data" else "constant"
            self.weights[name] = Weight(kind, found, array.shape, name)
            self.tensors[name] = array
        return Slot("weight", name)

    def leaves(
        self, arguments: Sequence[Argument], meta: Mapping[str, Any]
    ) -> tuple[TensorLeaf | ConstantLeaf, ...]:
        """The leaves of the arguments, with what the bundle tells of those that are not used."""
        unused = {
            location["position"]: described
            for location, described in _pairs(meta.get("unused_inputs"))
        }
        names: dict[int, str] = {}
        for argument in arguments:
            names |= argument.tree.paths(argument.name)
        count = len(names)
        if extra := [position for position in self.inputs if position >= count]:
            raise SavedModelError(
                f"{self._where}: input_locations: found position {extra[0]}, needed less than "
                f"{count}, the number of arguments"
            )
        found: list[TensorLeaf | ConstantLeaf] = []
        for position in range(count):
            name = names[position]
            if position in self.inputs:
                type = self.inputs[position].type
                found.append(TensorLeaf(name, type.dtype, type.shape))
            elif position in unused and "shape" in unused[position]:
                found.append(_unused(name, unused[position]))
            else:
                found.append(ConstantLeaf(name, ""))
        return tuple(found)


def _pairs(value: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    match value:
        case list() if all(
            isinstance(pair, list)
            and len(pair) == 2
            and all(isinstance(part, dict) for part in pair)
            and isinstance(pair[0].get("position"), int)
            for pair in value
        ):
            return [(pair[0], pair[1]) for pair in value]
    return []


def _unused(name: str, described: Mapping[str, Any]) -> TensorLeaf | ConstantLeaf:
    try:
        return TensorLeaf(name, dtypes.of(described["dtype"]), tuple(map(int, described["shape"])))
    except (KeyError, TypeError, ValueError):
        # No tensor; the bundle does not tell its value.
        return ConstantLeaf(name, "")


def _function(folder: Path, wanted: str | None) -> str:
    names = sorted(file.stem for file in (folder / FUNCTIONS).glob("*.meta"))
    if not names:
        raise SavedModelError(
            f"{folder / FUNCTIONS}: found no .meta file, needed one for each function"
        )
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted not in names:
        raise SavedModelError(
            f"{folder / FUNCTIONS}: function: found {wanted!r}, needed one of {', '.join(names)}"
        )
    return wanted


def _program(stem: Path) -> Program:
    for suffix in (".bytecode", ".mlir"):
        path = stem.with_name(stem.name + suffix)
        if path.is_file():
            try:
                return Program.from_file(path)
            except ProgramError as error:
                raise SavedModelError(str(error)) from error
    raise SavedModelError(f"{stem}.bytecode: the file is missing, and {stem.name}.mlir, too")


def _json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(read_file(path, MANIFEST_LIMIT))
    except SavedModelError:
        raise
    except (ValueError, RecursionError) as error:
        raise SavedModelError(f"{path}: truncated, or no JSON: {error}") from error
    if not isinstance(found, dict):
        raise SavedModelError(f"{path}: found a {type(found).__name__}, needed an object")
    return found


def _field(where: Path, data: Mapping[str, Any], name: str, kind: type) -> Any:
    found = data.get(name)
    if not isinstance(found, kind):
        raise SavedModelError(f"{where}: {name}: found {found!r}, needed a {kind.__name__}")
    return found


def _mapped(path: Path) -> Array:
    # Anything but a regular file is refused here.
    open_file(path).close()
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise SavedModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:
        # NumPy evaluates the header as Python, and lets errors of that pass.
        raise SavedModelError(f"{path}: truncated, or no file of NumPy's: {error}") from error
    if not isinstance(found, np.ndarray):
        raise SavedModelError(f"{path}: found several arrays, needed a file with one")
    return found


def _arguments(
    where: Path, meta: Mapping[str, Any], count: int, names: Sequence[str]
) -> tuple[Argument, ...]:
    """The arguments of a call; without a nesting each leaf is one."""
    match _tree(where, "input_pytree_spec", meta.get("input_pytree_spec")):
        case None:
            trees: tuple[Tree, ...] = tuple(Tree("leaf", leaf=at) for at in range(count))
            keywords: dict[str, Tree] = {}
        case Tree(kind="tuple", items=(Tree(kind="tuple") as args, Tree(kind="dict") as kwargs)):
            trees = args.items
            keywords = dict(zip(kwargs.keys, kwargs.items, strict=True))
        case _:
            raise SavedModelError(
                f"{where}: input_pytree_spec: needed a tuple of arguments and a dict of keywords"
            )
    called = [*names[: len(trees)], *(f"arg{at}" for at in range(len(names), len(trees)))]
    named = dict(zip(called, trees, strict=True)) | keywords
    return tuple(Argument(name, tree) for name, tree in named.items())


def _tree(where: Path, field: str, text: Any) -> Tree | None:
    """A nesting as PyTorch writes it; None where there is none."""
    if text is None:
        return None
    try:
        protocol, spec = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise SavedModelError(f"{where}: {field}: found {text!r}: {error}") from error
    if protocol != _SPEC_PROTOCOL:
        raise SavedModelError(
            f"{where}: {field}: found protocol {protocol!r}, needed {_SPEC_PROTOCOL}"
        )
    return _node(where, field, spec, [], 0)


def _node(where: Path, field: str, spec: Any, leaves: list[None], depth: int) -> Tree:
    if depth > LEVELS:
        raise SavedModelError(
            f"{where}: {field}: found more than {LEVELS} levels, needed {LEVELS} at most"
        )
    match spec:
        case {"type": None}:
            leaves.append(None)
            return Tree("leaf", leaf=len(leaves) - 1)
        case {"type": str(name), "context": context, "children_spec": list(children)}:
            items = tuple(_node(where, field, child, leaves, depth + 1) for child in children)
            kind = _KINDS.get(name, "tuple")
            origin = "" if name.startswith("builtins.") else name
            if kind != "dict":
                return Tree(kind, items=items, origin=origin)
            keys = _keys(context)
            if len(set(keys)) == len(items):
                return Tree(kind, items=items, keys=keys, origin=origin)
    raise SavedModelError(f"{where}: {field}: found {spec!r}, needed a leaf or a container")


def _keys(context: Any) -> tuple[str, ...]:
    try:
        found = json.loads(context)
    except (TypeError, ValueError):
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()
