"""A training step as one graph: forward, backward and, if there is one, the optimizer's update.

torch.export traces the model together with its loss; AOTAutograd makes the joint graph of that.
The optimizer is traced on its own, over parameters, gradients and state, and appended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.exported import Tree
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.exporting.capture import (
    CapturedGraph,
    Source,
    arguments_of,
    finish,
    sources_of,
    tree_of,
)
from pjrt_bridge.torch_interop.exporting.operator_composites import with_marks
from pjrt_bridge.torch_interop.exporting.optimizers import Update, capture_update
from pjrt_bridge.torch_interop.exporting.repeated_writes import without_repeated_writes
from pjrt_bridge.torch_interop.recurrent import layers

_PREFIX = "model."


class _WithLoss(nn.Module):
    """A model with a loss function behind it."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
        outputs = self.model(*args, **kwargs)
        return self.loss(outputs), outputs


def capture_step(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: Sequence[str],
    loss: Callable[[Any], torch.Tensor] | None,
    optimizer: torch.optim.Optimizer | None,
    *,
    marked: bool = False,
) -> CapturedGraph:
    """Loss and gradients of a model, or a whole step, as one graph.

    Args:
        model: is traced.
        args: example arguments.
        kwargs: example arguments by name.
        names: of the arguments that are given by position.
        loss: of the model's result; None: the result contains it.
        optimizer: over parameters of the model; None: the gradients are results.
        marked: with marks around operators that may be composites.

    Raises:
        NotExportable: no loss that is one floating-point number, no parameter that needs a
            gradient, or an optimizer that cannot be traced.
        OptionError: the optimizer has parameters that the model has not.
    """
    if optimizer is not None:
        _need_host(optimizer)
    whole = _WithLoss(model, own_loss if loss is None else loss)
    program = without_repeated_writes(compat.trace(whole, args, kwargs, None))
    if marked:
        program = with_marks(program)
    sources = [_renamed(source, names) for source in sources_of(program, _PREFIX)]
    joint = _joint(program, sources)
    arguments = arguments_of(program, names)
    loss_tree, outputs = tree_of(program.call_spec.out_spec).items
    if optimizer is None:
        first = len(joint.results)
        items = tuple(Tree("leaf", leaf=first + at) for at in range(len(joint.gradients)))
        keys = tuple(sources[position].name for position in joint.gradients)
        gradients = Tree("dict", items=items, keys=keys)
        tree = _dict(loss=loss_tree, outputs=outputs, gradients=gradients)
        finish(joint.graph, joint.updates, [*joint.results, *joint.gradients.values()])
        return CapturedGraph(
            fx.GraphModule(joint.root, joint.graph), tuple(sources), arguments, tree
        )
    with_gradient = {
        sources[position].name: sources[position].value
        for position, gradient in joint.gradients.items()
        if gradient is not None
    }
    update = capture_update(optimizer, with_gradient)
    sources += [Source("constant", name, value) for name, value in update.constants]
    sources += [Source("optimizer", name, value) for name, value in update.state]
    _append(joint, update, sources)
    finish(joint.graph, joint.updates, joint.results)
    tree = _dict(loss=loss_tree, outputs=outputs)
    return CapturedGraph(fx.GraphModule(joint.root, joint.graph), tuple(sources), arguments, tree)


def _need_host(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.device.type != "cpu":
                raise NotExportable(
                    f"training: found an optimizer of parameters on {parameter.device}, expected "
                    "the host: make it for a copy of the model, copy.deepcopy(model).cpu()"
                )


def own_loss(outputs: Any) -> torch.Tensor:
    """The loss in a model's result: the result itself, its entry `loss`, or the first of several.

    Raises:
        NotExportable: none of these is a tensor.
    """
    found = outputs
    if isinstance(outputs, dict) or hasattr(outputs, "loss"):
        found = outputs["loss"] if isinstance(outputs, dict) else outputs.loss
    elif isinstance(outputs, (tuple, list)) and outputs:
        found = outputs[0]
    if not isinstance(found, torch.Tensor):
        raise NotExportable(
            f"training: found no loss in a {type(outputs).__name__}, expected a tensor, an entry "
            "'loss' or a first element; or give loss=FUNCTION"
        )
    return found


@dataclass
class _Joint:
    """Forward and backward in one graph, without its output node.

    Attributes:
        root: the module that holds the graph's attributes.
        graph: has a placeholder for each source.
        results: of the forward graph, including constants.
        gradients: by the position of the source; None where the loss does not depend on it.
        updates: new values by the position of the source.
    """

    root: Any
    graph: fx.Graph
    results: list[Any]
    gradients: dict[int, Any]
    updates: dict[int, Any]


def _joint(program: ExportedProgram, sources: list[Source]) -> _Joint:
    """The joint graph of an exported program; weights that are one tensor become one source."""
    forward = fx.Graph()
    leaves = list(forward.graph_copy(program.graph, {}))  # type: ignore[arg-type]
    kinds = {spec.kind for spec in program.graph_signature.output_specs}
    if kinds - {OutputKind.USER_OUTPUT}:
        raise NotExportable(f"training: found results of the kinds {kinds}, expected plain ones")
    promise = leaves[0].meta["val"] if isinstance(leaves[0], fx.Node) else None
    if not isinstance(promise, torch.Tensor) or promise.numel() != 1:
        shape = list(promise.shape) if isinstance(promise, torch.Tensor) else type(promise)
        raise NotExportable(f"training: the loss has the shape {shape}, expected one number")
    placeholders = [node for node in forward.nodes if node.op == "placeholder"]
    _merge(placeholders, sources)
    for node, source in zip(list(placeholders), list(sources), strict=True):
        if source.kind == "number":
            forward.erase_node(node)
    examples = iter(compat.tree_leaves(program.example_inputs))
    values = []
    for source in sources:
        example = None if source.is_weight else next(examples)
        if source.kind != "number":
            values.append(source.value if source.is_weight else example)
    taken = [position for position, source in enumerate(sources) if source.kind != "number"]
    if not any(getattr(value, "requires_grad", False) for value in values):
        raise NotExportable("training: no parameter of the model needs a gradient")
    tensors = [at for at, leaf in enumerate(leaves) if isinstance(leaf, fx.Node)]
    detach = compat.operator("aten.detach.default")
    assert detach is not None
    kept = [leaves[0]]
    for at in tensors[1:]:
        detached = forward.call_function(detach, (leaves[at],))
        detached.meta = dict(leaves[at].meta)
        kept.append(detached)
    forward.output(tuple(kept))
    # AOTAutograd would make nodes of every step of a recurrent layer.
    rules = layers.decompositions()
    for node in forward.nodes:
        node.target = rules.get(node.target, node.target)
    whole = fx.GraphModule(program.graph_module, forward)
    try:
        joint, signature = compat.export_joint(whole, values, 0)
    except compat.DATA_DEPENDENT as error:
        raise NotExportable(
            f"training: torch traces no gradients where a size depends on data: {error}"
        ) from error

    made = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    given = [node for node in joint.graph.nodes if node.op == "placeholder"]
    of_source = dict(zip(taken, given, strict=True))
    for position, source in enumerate(sources):
        node = made.placeholder(_identifier(source.name, position))
        if position in of_source:
            node.meta = dict(of_source[position].meta)
            copies[of_source[position]] = node
        else:
            node.meta["val"] = source.value
    outputs = list(made.graph_copy(joint.graph, copies))  # type: ignore[arg-type]
    trained = [at for at in taken if getattr(sources[at].value, "requires_grad", False)]
    first, last = len(outputs) - len(kept) - len(trained), len(outputs) - len(trained)
    written = list(signature.user_inputs_to_mutate.values())
    if len(written) != first:
        raise NotExportable(f"training: found {first} new values, expected {len(written)}")
    positions = {node.name: position for position, node in of_source.items()}
    results = list(leaves)
    for at, value in zip(tensors, outputs[first:last], strict=True):
        results[at] = value
    return _Joint(
        joint,
        made,
        results,
        dict(zip(trained, outputs[last:], strict=True)),
        {positions[name]: value for name, value in zip(written, outputs[:first], strict=True)},
    )


def _merge(placeholders: list[fx.Node], sources: list[Source]) -> None:
    """Merge the placeholders of one tensor into the first of them."""
    first: dict[int, fx.Node] = {}
    for node, source in zip(list(placeholders), list(sources), strict=True):
        if not source.is_weight:
            continue
        kept = first.setdefault(id(source.value), node)
        if kept is not node:
            node.replace_all_uses_with(kept)
            node.graph.erase_node(node)
            placeholders.remove(node)
            sources.remove(source)


def _append(joint: _Joint, update: Update, sources: Sequence[Source]) -> None:
    """Append an optimizer's step to a joint graph; its state becomes the last sources."""
    graph, step = joint.graph, update.step
    weights = [node for node in graph.nodes if node.op == "placeholder"]
    positions = {source.name: position for position, source in enumerate(sources)}
    given = [node for node in step.graph.nodes if node.op == "placeholder"]
    names = [name for name, _ in (*update.constants, *update.state)]
    examples = [*given[: len(step.constants)], *given[len(given) - len(update.state) :]]
    last, kept = weights[-1], []
    for name, example in zip(names, examples, strict=True):
        with graph.inserting_after(last):
            last = graph.placeholder(_identifier(name, positions[name]))
        last.meta = dict(example.meta)
        kept.append(last)
    trained = [positions[name] for name in update.parameters]
    values = [
        *kept[: len(step.constants)],
        *(weights[position] for position in trained),
        *(joint.gradients[position] for position in trained),
        *kept[len(step.constants) :],
    ]
    targets = [*trained, *[-1] * len(trained), *(positions[name] for name, _ in update.state)]
    copies = dict(zip(given, values, strict=True))
    outputs = list(graph.graph_copy(step.graph, copies))  # type: ignore[arg-type]
    for target, value in zip(step.updates, outputs, strict=False):
        if targets[target] >= 0:
            joint.updates[targets[target]] = value


def _renamed(source: Source, names: Sequence[str]) -> Source:
    """An argument by position with its own name, which tracing through `*args` has replaced."""
    found = None if source.is_weight else re.match(r"args_(\d+)", source.name)
    if found is None or int(found[1]) >= len(names):
        return source
    return replace(source, name=names[int(found[1])] + source.name[found.end() :])


def _identifier(name: str, position: int) -> str:
    # Weights of a Sequential begin with a digit.
    return f"{re.sub(r'[^0-9a-zA-Z_]|^(?=[0-9])', '_', name)}_{position}"


def _dict(**trees: Tree) -> Tree:
    return Tree("dict", items=tuple(trees.values()), keys=tuple(trees))
