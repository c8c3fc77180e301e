"""Functions of torch as programs, with their gradients, for frameworks that call StableHLO."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import fx

from pjrt_bridge import user_warnings
from pjrt_bridge.errors import NotExportable
from pjrt_bridge.mixed.adapter import Computed, SegmentInput
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import compat, precision
from pjrt_bridge.torch_interop.exporting.emission import emitted_row_major, held_by
from pjrt_bridge.torch_interop.exporting.lowering import not_lowerable
from pjrt_bridge.torch_interop.foreign.mapped_attention import (
    has_attention,
    with_mapped_attention,
)
from pjrt_bridge.torch_interop.foreign_functions import ArraySpec
from pjrt_bridge.torch_interop.lowering import registry as portable
from pjrt_bridge.torch_interop.passes.functionalize_rng import (
    count_keys,
    derive_keys,
    functionalize_rng,
    show_pure,
)
from pjrt_bridge.torch_interop.passes.pipeline import PassContext, rewrite
from pjrt_bridge.torch_interop.placement.predicate import Placement
from pjrt_bridge.torch_interop.placement.refusals import refused
from pjrt_bridge.torch_interop.tensors import torch_dtype

_T = TypeVar("_T")

_CONTEXT = PassContext("exported", refused=refused)


@dataclass(frozen=True)
class Gradients:
    """The forward and backward functions for gradients of some arguments.

    Attributes:
        forward: gives the results, and behind them what is saved.
        backward: of what was saved, and of the gradients of the results `reads`; it gives a
            gradient for each argument that was asked for.
        reads: for each result whether it depends on these arguments.
    """

    forward: TorchFunction
    backward: TorchFunction
    reads: tuple[bool, ...]


class TorchFunction:
    """A pure function of tensors, traced for the types that come.

    Args:
        function: takes tensors and gives tensors.
        label: what users read.
        seeded: the first argument is 64 random bits, as two int32, of which all that the function
            draws is a function; `function` itself does not take them.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[torch.Tensor]],
        label: str,
        *,
        seeded: bool = False,
    ) -> None:
        self.label = label
        self._function = function
        self._is_seeded = seeded
        self._known: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def results(self, arguments: Sequence[ArraySpec]) -> tuple[ArraySpec, ...]:
        """Shapes and types of the results for such arguments.

        Raises:
            Exception: what the function raises for them.
        """
        (output,) = self._graph(tuple(arguments)).graph.find_nodes(op="output")
        return tuple(ArraySpec.of(compat.promise(item)) for item in output.args[0])

    def draws(self, arguments: Sequence[ArraySpec]) -> bool:
        """Whether it draws random numbers, and has no bits to draw them from."""
        return bool(count_keys(self._graph(tuple(arguments)).graph))

    def seeded(self) -> TorchFunction:
        """The function that takes 64 random bits, as two int32, before its arguments."""
        return self._once("seeded", lambda: TorchFunction(self._function, self.label, seeded=True))

    def program(self, arguments: Sequence[ArraySpec]) -> Program:
        """Its program: a parameter for each argument, a result for each of `results`.

        Raises:
            NotExportable: operators that do not lower; the text lists all of them.
        """
        specs = tuple(arguments)
        key = "program", specs, precision.settings()
        return self._once(key, lambda: self._emitted(specs))

    def artifact(self, arguments: Sequence[ArraySpec], target: str) -> bytes:
        """Its program as a portable artifact of a version of StableHLO, which is made once.

        Raises:
            NotExportable: as for `program`.
            ProgramError: the version has no such operations.
        """
        specs = tuple(arguments)
        key = "artifact", specs, target, precision.settings()
        return self._once(key, lambda: self.program(specs).portable_artifact(target))

    def mapped(
        self, dimensions: Sequence[int | None], arguments: Sequence[ArraySpec]
    ) -> TorchFunction:
        """The function over a further dimension of some arguments, which leads its results.

        Args:
            dimensions: by argument the dimension; None where all rows use the same array.
            arguments: what the function is given for a row.
        """
        specs = tuple(arguments)
        graph = self._graph(specs)
        # What is drawn from bits is known in the graph alone.
        function = graph if self._is_seeded else self._function
        if has_attention(graph):
            function = with_mapped_attention(graph)

        def over_rows(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
            found: Sequence[torch.Tensor] = torch.vmap(
                lambda *rows: tuple(function(*rows)), in_dims=tuple(dimensions)
            )(*tensors)
            return found

        return self._once(
            ("vmap", tuple(dimensions), specs),
            lambda: TorchFunction(over_rows, f"{self.label}.vmap"),
        )

    def derivative(self, arguments: Sequence[ArraySpec], wanted: Sequence[bool]) -> Gradients:
        """How gradients of some arguments are computed."""
        specs, chosen = tuple(arguments), tuple(wanted)
        return self._once(("derivative", specs, chosen), lambda: self._divided(specs, chosen))

    def _once(self, key: Any, make: Callable[[], _T]) -> _T:
        with self._lock:
            if key not in self._known:
                self._known[key] = make()
            found: _T = self._known[key]
        return found

    def _graph(self, specs: tuple[ArraySpec, ...]) -> fx.GraphModule:
        return self._once(("graph", specs), lambda: self._traced(specs))

    def _traced(self, specs: tuple[ArraySpec, ...]) -> fx.GraphModule:
        with self._tracing():
            promises = [_promise(spec) for spec in specs]
            found = compat.export_plain(self._of_their_own, promises)
            self._make_pure(found)
        show_pure(found.graph)
        found.recompile()
        return found

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        try:
            with compat.real_tensors(), compat.fakes(symbolic=False):
                yield
        except compat.DATA_DEPENDENT as error:
            raise NotExportable(
                f"{self.label}: {user_warnings.line_of(error)}: what follows depends on the values "
                "of tensors, expected a function that does the same for all values of a shape: "
                "use torch.where instead of `if`, and keep numbers in tensors"
            ) from error

    def _make_pure(self, module: fx.GraphModule) -> None:
        """Draw from keys, and those from the bits that are given."""
        functionalize_rng(module.graph, refused=refused)
        if self._is_seeded:
            derive_keys(module.graph, module.graph.find_nodes(op="placeholder")[0])

    def _of_their_own(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The results, none of which is an argument."""
        given = tensors[1:] if self._is_seeded else tensors
        return tuple(item.clone() for item in self._function(*given))

    def _divided(self, specs: tuple[ArraySpec, ...], wanted: tuple[bool, ...]) -> Gradients:
        with self._tracing():
            promises = [
                _promise(spec).requires_grad_(chosen)
                for spec, chosen in zip(specs, wanted, strict=True)
            ]
            with torch.enable_grad():
                forward, backward, reads = compat.export_divided(
                    self._of_their_own, promises, self._make_pure
                )
        for module in (forward, backward):
            show_pure(module.graph)
            module.recompile()

        def gradients(*tensors: torch.Tensor) -> list[torch.Tensor]:
            found = backward(*tensors)
            return [
                _zeros(spec) if item is None else item
                for spec, item, chosen in zip(specs, found, wanted, strict=True)
                if chosen
            ]

        return Gradients(
            TorchFunction(forward, f"{self.label}.forward"),
            TorchFunction(gradients, f"{self.label}.backward"),
            reads,
        )

    def _emitted(self, specs: tuple[ArraySpec, ...]) -> Program:
        graph = self._graph(specs)
        graph = rewrite(graph, _CONTEXT, "unsized").module
        if len(graph.graph.find_nodes(op="placeholder")) != len(specs):
            raise NotExportable(
                f"{self.label}: it draws random numbers, which a pure function cannot: call "
                ".eval() on the module first"
            )
        graph = rewrite(graph, _CONTEXT, "sized").module
        reasons = Placement(portable.find_lowering).fallback_reasons(graph.graph)
        if reasons:
            raise not_lowerable(list(reasons.values()), self.label)
        emitted = emitted_row_major(graph, self.label, {}, portable.find_lowering, in_place=False)
        builder = Builder([TensorType(spec.shape, spec.dtype) for spec in specs], name=self.label)
        given = builder.parameters
        held = [builder.constant(array) for array in held_by(emitted, "held").values()]
        found = builder.call(emitted.program, [*(given[at] for at in emitted.inputs), *held])

        def value(output: Any) -> Value:
            if isinstance(output, Computed):
                return found[output.result]
            assert isinstance(output, SegmentInput)
            return given[output.position]

        count = len(self.results(specs))
        return builder.finish([value(item) for item in emitted.bindings.outputs[:count]])


def _promise(spec: ArraySpec) -> torch.Tensor:
    return torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device="cpu")


def _zeros(spec: ArraySpec) -> torch.Tensor:
    return torch.zeros(spec.shape, dtype=torch_dtype(spec.dtype), device="cpu")
