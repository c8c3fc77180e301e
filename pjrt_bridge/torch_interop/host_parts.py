"""Parts of exported models that PyTorch runs, kept in the form of `torch.export.save`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.runtime import Buffer
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import compat

# Importing it defines the random operators with keys, which parts may call.
from pjrt_bridge.torch_interop.randomness import operators  # noqa: F401
from pjrt_bridge.torch_interop.tensors import adopt


class TorchPart:
    """An ATen graph.

    Args:
        program: without weights; what it holds itself are constants, the first of its arguments.
    """

    framework = "torch"
    suffix = ".pt2"

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._module = program.graph_module
        specs = program.graph_signature.input_specs
        self._held = [program.constants[spec.target] for spec in specs if spec.target is not None]
        ends = program.graph_signature.output_specs
        self._count = sum(not isinstance(end.arg, ConstantArgument) for end in ends)

    @classmethod
    def of(cls, module: fx.GraphModule) -> TorchPart:
        """A functional graph that returns a tuple.

        Raises:
            NotExportable: torch.export has no form for something in it.
        """
        try:
            part = cls(program_of(module))
            part.content()
        except Exception as error:
            raise NotExportable(
                f"a part of the model that has to run in PyTorch cannot be saved: {error}"
            ) from error
        return part

    def content(self) -> bytes:
        """A `.pt2` archive."""
        file = io.BytesIO()
        torch.export.save(self._program, file)
        return file.getvalue()

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        """The outputs: tensors with memory of their own, or numbers."""
        given = [_tensor(value) if isinstance(value, Buffer) else value for value in values]
        with torch.no_grad(), compat.without_autocast():
            results = self._module(*self._held, *given)[: self._count]
        taken = {_memory(value) for value in (*self._held, *given)} - {None}
        # The owner of an argument may write into it while the result is still read.
        return [value.clone() if _memory(value) in taken else value for value in results]


def read(content: bytes) -> TorchPart:
    """The part that `TorchPart.content` gave; raises what `torch.export.load` raises."""
    with compat.without_own_warnings():
        return TorchPart(torch.export.load(io.BytesIO(content)))


def program_of(module: fx.GraphModule) -> ExportedProgram:
    """A functional graph that returns a tuple as a program that torch.export saves.

    Nothing is traced: sizes that depend on data stay the symbols that they are. Tensors that the
    graph holds itself become constants, and its first placeholders.
    """
    graph = fx.Graph()
    output = graph.graph_copy(module.graph, {})
    assert isinstance(output, (tuple, list))
    # Torch saves no program without results; a part that only checks something has this one.
    output = tuple(output) or (None,)
    graph.output(output)
    constants = _lift_constants(graph, module)
    compat.promise_alike(graph)
    placeholders = graph.find_nodes(op="placeholder")
    inputs = [
        InputSpec(InputKind.CONSTANT_TENSOR, _argument(node), str(node.target))
        if node.target in constants
        else InputSpec(InputKind.USER_INPUT, _argument(node), None)
        for node in placeholders
    ]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(item), None) for item in output]
    call = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=compat.flat_call(len(inputs) - len(constants)),
        out_spec=compat.flat_tree(len(outputs)),
    )
    ranges: dict[Any, Any] = {}
    for node in graph.nodes:
        ranges |= compat.symbol_ranges(node.meta.get("val"))
    return ExportedProgram(
        root=fx.GraphModule(module, graph),
        graph=graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict={},
        range_constraints=ranges,
        module_call_graph=[ModuleCallEntry(fqn="", signature=call)],
        constants=constants,
    )


def _lift_constants(graph: fx.Graph, module: fx.GraphModule) -> dict[str, Any]:
    """Make placeholders of the tensors that a graph holds, in front of the others; the tensors."""
    constants: dict[str, Any] = {}
    first = next(iter(graph.nodes))
    replaced = []
    for node in graph.find_nodes(op="get_attr"):
        held = compat.graph_attribute(module, str(node.target))
        if isinstance(held, torch.Tensor):
            with graph.inserting_before(first):
                made = graph.placeholder(f"held_{len(constants)}")
            made.meta["val"] = held
            node.replace_all_uses_with(made)
            replaced.append(node)
            constants[str(made.target)] = held.detach()
    for node in replaced:
        graph.erase_node(node)
    return constants


def _argument(value: Any) -> ArgumentSpec:
    """An argument or result of a graph, as torch.export describes it."""
    if not isinstance(value, fx.Node):
        return ConstantArgument("", value)
    match value.meta.get("val"):
        case torch.Tensor():
            return TensorArgument(value.name)
        case torch.SymFloat():
            return SymFloatArgument(value.name)
    return SymIntArgument(value.name)


def _tensor(buffer: Buffer) -> torch.Tensor:
    """A tensor over a buffer's memory where that is the host's, else over a copy."""
    return adopt(buffer, ValueSpec.row_major(TensorType(buffer.shape, buffer.dtype)))


def _memory(value: Any) -> int | None:
    """Where a tensor's memory begins; None for what has none."""
    found = value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0
    return found or None
