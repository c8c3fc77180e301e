"""The division over a mesh of those values of graphs that are not divided yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import fx

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.mixed.mesh_launcher import Division
from pjrt_bridge.stablehlo.sharding.sharding import Sharding
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.meshes.constraint import constrained_mesh
from pjrt_bridge.torch_interop.meshes.mesh import BATCH_AXES, Mesh
from pjrt_bridge.torch_interop.placement.split import Part

_NUMBER = "pjrt_bridge_gradient_of"


def number_gradients(graph: fx.Graph) -> None:
    """Note in a backward graph of which input of its forward graph each result is the gradient.

    AOTAutograd has them in the order of these inputs; passes may change that.
    """
    (output,) = graph.find_nodes(op="output")
    for number, item in enumerate(output.args[0]):
        if isinstance(item, fx.Node) and item.op == "call_function":
            item.meta.setdefault(_NUMBER, number)


class Divisions:
    """The divisions of the graphs of one Dynamo graph.

    Args:
        mesh: that the user's options name.
    """

    def __init__(self, mesh: Mesh | None) -> None:
        self._batch_axes = () if mesh is None else BATCH_AXES
        self._mesh = None if mesh is None else mesh.grid
        # Of the inputs of the forward graph in its last call.
        self._shardings: dict[int, Sharding] = {}

    def have_mesh(self, graph: fx.Graph) -> bool:
        """Whether a mesh is known before values come: of the options, or of constraints.

        Args:
            graph: whose constraints are read.

        Raises:
            ProgramError: constraints over several meshes, or another one than the options name.
        """
        found = constrained_mesh(graph)
        if found is not None and self._mesh is not None and found != self._mesh:
            raise ProgramError(
                f"a constraint of the graph is over {found}, expected {self._mesh}, which options "
                "or other graphs of the same function name"
            )
        self._mesh = found if self._mesh is None else self._mesh
        return self._mesh is not None

    def of(self, graph: fx.Graph, kind: str, static: frozenset[int]) -> Division:
        """The division of a whole graph.

        Args:
            graph: all passes were applied to it.
            kind: of the graph.
            static: positions of parameters and buffers.
        """
        placeholders = graph.find_nodes(op="placeholder")
        (output,) = graph.find_nodes(op="output")
        return self._division(
            dict(enumerate(placeholders)),
            {at: at for at in range(len(placeholders))},
            dict(enumerate(output.args[0])),
            kind,
            static,
        )

    def of_part(self, part: Part, kind: str, static: frozenset[int]) -> Division:
        """The division of a part of a graph; see `of`. What PyTorch gives to it is a batch."""
        placeholders = part.module.graph.find_nodes(op="placeholder")
        (output,) = part.module.graph.find_nodes(op="output")
        arguments = {at: item for at, item in enumerate(part.arguments) if item is not None}
        found = self._division(
            {at: placeholders[at] for at in arguments},
            arguments,
            dict(enumerate(output.args[0])),
            kind,
            static,
        )
        between = {at for at, item in enumerate(part.arguments) if item is None}
        return replace(found, batches=found.batches | between) if self._batch_axes else found

    def _division(
        self,
        arguments: Mapping[int, fx.Node],
        numbers: Mapping[int, int],
        outputs: Mapping[int, object],
        kind: str,
        static: frozenset[int],
    ) -> Division:
        backward = kind == "backward"
        batches = arguments if self._batch_axes and not backward else ()
        return Division(
            mesh=self._mesh,
            batch_axes=self._batch_axes,
            replicated=frozenset(at for at, number in numbers.items() if number in static),
            batches=frozenset(
                at for at in batches if numbers[at] not in static and _is_of_user(arguments[at])
            ),
            inputs={} if backward else numbers,
            gradients={
                at: item.meta[_NUMBER]
                for at, item in outputs.items()
                if backward and isinstance(item, fx.Node) and _NUMBER in item.meta
            },
            shardings=self._shardings,
        )


def _is_of_user(node: fx.Node) -> bool:
    """Whether an argument is the user's, and not one that a pass added, such as a key."""
    promise = compat.promise(node)
    named = str(node.target).startswith(("primals_", "arg"))
    return named and isinstance(promise, torch.Tensor) and promise.dim() > 0
