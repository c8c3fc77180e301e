"""A program of torch.export as one functional graph, with names for its inputs and outputs.

Names of weights and arguments, and the nesting around tensors, come from the exported program; new
values of weights and arguments become `aten.copy_` at the end of the graph, as in graphs that
torch.compile brings, so that one way leads from both to StableHLO.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from pjrt_bridge import dtypes
from pjrt_bridge.errors import NotExportable
from pjrt_bridge.exported import Argument, ConstantLeaf, TensorLeaf, Tree
from pjrt_bridge.exported.interface import WeightKind
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.exporting.repeated_writes import without_repeated_writes
from pjrt_bridge.torch_interop.recurrent import layers

COPY = "aten.copy_.default"

_SETTLED = "aten._assert_tensor_metadata.default"
"""A check of properties that are known while tracing, so it holds in every call."""

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)

_UPDATES = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
)


@dataclass(frozen=True)
class Source:
    """The source of a placeholder of a graph: a weight, an input or a number.

    Attributes:
        kind: a weight of some kind, an argument of the call, or `"number"` for an argument that
            is part of the graph.
        name: of the weight in the model, or of the argument.
        value: the weight's tensor; the example of an argument, as torch promises it; the number.
    """

    kind: WeightKind | Literal["input", "number"]
    name: str
    value: Any

    @property
    def is_weight(self) -> bool:
        """Whether it is stored with the program."""
        return self.kind not in ("input", "number")


@dataclass(frozen=True)
class CapturedGraph:
    """A functional ATen graph and its inputs and outputs.

    Attributes:
        module: the graph; it returns the leaves of the results.
        sources: for each placeholder what it is.
        arguments: of the exported function.
        outputs: nesting of the results.
    """

    module: fx.GraphModule
    sources: tuple[Source, ...]
    arguments: tuple[Argument, ...]
    outputs: Tree

    def leaves(self, shapes: Mapping[str, tuple[int | str, ...]]) -> list[Any]:
        """The leaves of the arguments; `shapes` for those that have symbolic sizes."""
        return [
            ConstantLeaf(source.name, source.value)
            if source.kind == "number"
            else TensorLeaf(
                source.name,
                dtypes.from_torch(source.value.dtype),
                shapes.get(source.name) or tuple(map(int, source.value.shape)),
            )
            for source in self.sources
            if not source.is_weight
        ]


def capture(
    program: ExportedProgram, names: Sequence[str] = (), *, prefix: str = ""
) -> CapturedGraph:
    """The graph of an exported program, decomposed for lowering.

    Args:
        program: as torch.export gives it.
        names: of the arguments that are given by position.
        prefix: to take off the names of weights.

    Raises:
        NotExportable: an argument or a result that is no tensor and no plain number, a write whose
            result depends on the order of its elements, or a constant without numbers.
    """
    for name in compat.constants_without_numbers(program):
        raise NotExportable(
            f"constant {name!r}: found a tensor that exists only while torch.export traces, "
            "expected one with numbers; torch.export makes such a constant of what a transform "
            "of torch.func, such as vjp, is given"
        )
    found = compat.decomposed(without_repeated_writes(program), layers.decompositions())
    graph = fx.Graph()
    outputs = list(graph.graph_copy(found.graph, {}))  # type: ignore[arg-type]
    sources = sources_of(found, prefix)
    positions = {
        spec.target if spec.target is not None else spec.arg.name: index
        for index, spec in enumerate(found.graph_signature.input_specs)
        if hasattr(spec.arg, "name")
    }
    updates: dict[int, Any] = {}
    results = []
    for spec, value in zip(found.graph_signature.output_specs, outputs, strict=True):
        if spec.kind in _UPDATES:
            updates[positions[str(spec.target)]] = value
        elif spec.kind is OutputKind.USER_OUTPUT:
            results.append(value)
        else:
            raise NotExportable(f"a result of the kind {spec.kind.name} has no place in a program")
    finish(graph, updates, results)
    return CapturedGraph(
        fx.GraphModule(found.graph_module, graph),
        sources,
        arguments_of(found, names),
        tree_of(found.call_spec.out_spec),
    )


def sources_of(program: ExportedProgram, prefix: str = "") -> tuple[Source, ...]:
    """The sources of the placeholders of an exported program."""
    promises = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    found = []
    for spec, promise in zip(program.graph_signature.input_specs, promises, strict=True):
        match spec.kind:
            case InputKind.PARAMETER | InputKind.BUFFER | InputKind.CONSTANT_TENSOR:
                assert spec.target is not None
                value = program.state_dict.get(spec.target, program.constants.get(spec.target))
                kind = spec.kind.name.lower().removesuffix("_tensor")
                found.append(Source(kind, spec.target.removeprefix(prefix), value))
            case InputKind.USER_INPUT if isinstance(spec.arg, ConstantArgument):
                found.append(Source("number", spec.arg.name, _plain(spec.arg)))
            case InputKind.USER_INPUT if isinstance(promise, torch.Tensor):
                found.append(Source("input", spec.arg.name, promise))
            case InputKind.USER_INPUT if isinstance(promise, _NUMBERS):
                raise NotExportable(
                    f"argument {spec.arg.name!r}: found a number that is another one in each call, "
                    "expected a tensor or a fixed number, which becomes part of the program; "
                    "export it without a dynamic shape, or give it as a 0-d tensor"
                )
            case _:
                raise NotExportable(
                    f"argument {getattr(spec.arg, 'name', '?')!r} is a {spec.kind.name} "
                    f"({type(spec.arg).__name__}), expected a tensor or a plain number"
                )
    return tuple(found)


def _plain(argument: ConstantArgument) -> Any:
    if argument.value is None or isinstance(argument.value, (bool, int, float, str)):
        return argument.value
    raise NotExportable(
        f"argument {argument.name!r}: found a {type(argument.value).__name__}, expected a tensor, "
        "a number, a text or None"
    )


def arguments_of(program: ExportedProgram, names: Sequence[str]) -> tuple[Argument, ...]:
    """The parameters of the exported function."""
    leaves = iter(range(len(program.graph_signature.input_specs)))
    _, _, (positional, named) = compat.tree_parts(program.call_spec.in_spec)
    trees = compat.tree_parts(positional)[2]
    texts = [*names[: len(trees)], *(f"arg_{i}" for i in range(len(names), len(trees)))]
    _, keys, values = compat.tree_parts(named)
    return tuple(
        Argument(str(name), _tree(spec, leaves))
        for name, spec in zip([*texts, *(keys or ())], [*trees, *values], strict=True)
    )


def tree_of(spec: Any) -> Tree:
    """A pytree of torch's as a tree; leaves are counted from 0."""
    return _tree(spec, iter(range(spec.num_leaves)))


def _tree(spec: Any, leaves: Iterable[int]) -> Tree:
    leaves = iter(leaves)
    kind, context, children = compat.tree_parts(spec)
    if kind is None:
        return Tree("leaf", leaf=next(leaves))
    if isinstance(context, type):
        # Torch has one node type for all named tuples; the context is the class.
        kind = context
    items = tuple(_tree(child, leaves) for child in children)
    own = kind in (list, tuple, dict)
    origin = "" if own else f"{kind.__module__}.{kind.__qualname__}"
    if kind is list:
        return Tree("list", items=items)
    keys = _keys(kind, context, len(items))
    if keys is not None:
        return Tree("dict", items=items, keys=keys, origin=origin)
    return Tree("tuple", items=items, origin=origin)


def _keys(kind: type, context: Any, count: int) -> tuple[str, ...] | None:
    """The keys of a mapping, or of a registered class that torch flattens like one."""
    if kind is tuple:
        return None
    fields = getattr(kind, "_fields", context)
    # Each class defines its context: the keys, a tuple that ends in the keys, or something else.
    for found in (fields, *(fields if isinstance(fields, (list, tuple)) else ())):
        if isinstance(found, (list, tuple)) and len(found) == count and count:
            return tuple(map(str, found))
    return None


def finish(graph: fx.Graph, updates: Mapping[int, Any], results: Sequence[Any]) -> None:
    """End a graph with copies of new values into placeholders and its results; drop dead nodes."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    copy = compat.operator(COPY)
    assert copy is not None
    for position, value in updates.items():
        target = placeholders[position]
        made = graph.call_function(copy, (target, value))
        made.meta["val"] = target.meta["val"]
    graph.output(tuple(results))
    for node in reversed(list(graph.nodes)):
        name = compat.operator_name(node.target)
        unused = node.op == "call_function" and not node.users and not node.is_impure()
        if name == _SETTLED or (unused and name not in (COPY, *compat.CHECKS)):
            graph.erase_node(node)
