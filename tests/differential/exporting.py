"""Programs as exported models: exported, saved, loaded and run.

What torch.export itself makes of a program is run, too: what that does otherwise than the program
is not the bridge's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from pjrt_bridge.errors import NotExportable, OptionError, SignatureMismatch
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.registry import client
from pjrt_bridge.torch_interop import compat, export
from pjrt_bridge.torch_interop.exporting.capture import capture
from pjrt_bridge.torch_interop.exporting.symbols import Symbols
from tests.differential.ir import Program
from tests.differential.observing import Call, Seen

EXPORT_ORACLES = ("torch.export", "decomposed export")
"""What torch.export gives, as it is and where nothing is written in place.

A copy between overlapping parts of one tensor goes element by element only where it is in place.
"""


class Refused(Exception):
    """A program that is not for export, or that torch or the bridge do not export."""


class _Model(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, *given: Any) -> Any:
        return self._function(*given)


class _Exported:
    """What torch.export gives, and the bridge's model of it, made when it is asked for.

    Args:
        program: of torch.export.
        sizes: choices of the symbolic sizes; None where all sizes are fixed.
    """

    def __init__(self, program: ExportedProgram, sizes: list[dict[str, int]] | None = None) -> None:
        self.program = program
        self._sizes = sizes

    @cached_property
    def model(self) -> ExportedModel:
        """The bridge's model."""
        with _making(self.program):
            return export(self.program, sizes=self._sizes)


class Exporting:
    """A program as exported models.

    Args:
        program: the program.
        namespace: its functions.
        expected: what eager mode gives.

    Raises:
        Refused: it draws numbers, has gradients, or raises.
    """

    def __init__(self, program: Program, namespace: dict[str, Any], expected: list[Call]) -> None:
        if program.random or program.backward or any(call.error for call in expected):
            raise Refused("not for export")
        self._program = program
        self._namespace = namespace
        self._expected = expected

    def observe(self, dynamic: bool, oracle: str = "") -> list[Call]:
        """What the exported model gives in each call.

        Values, types and shapes of results are compared, and what is written into arguments;
        results share no memory.

        Args:
            dynamic: one model with symbolic sizes is for all calls, and calls of sizes that it is
                not for are left out; otherwise each call has a model.
            oracle: of `EXPORT_ORACLES`, to run that and not what the bridge makes of the program.

        Raises:
            Refused: there is no model.
        """
        found = list(self._expected)
        if not dynamic:
            for number in range(len(found)):
                with _running(_Exported(self._traced(number)), oracle) as run:
                    found[number] = self._accepted(self._call(run, number))
            return found
        exported, numbers = self._exported_for_all()
        with _running(exported, oracle) as run:
            for number in numbers:
                found[number] = self._accepted(self._call(run, number))
        return found

    def _accepted(self, call: Call) -> Call:
        if isinstance(call.error, SignatureMismatch) and "in the same memory" in str(call.error):
            raise Refused("it writes into an argument that overlaps itself")
        return call

    def _given(self, number: int) -> tuple[dict[str, Any], list[Any]]:
        made = self._namespace["arguments"](*self._program.calls[number])
        return made, [made[name] for name in self._program.parameters]

    def _traced(self, number: int, shapes: Any = None) -> ExportedProgram:
        model = _Model(self._namespace["f"])
        given = tuple(self._given(number)[1])
        with torch.no_grad():
            try:
                return compat.trace(model, given, {}, shapes)
            except Exception as error:
                ours = error
            try:
                torch.export.export(model, given, dynamic_shapes=shapes)
            except Exception as error:
                raise Refused(f"torch.export: {type(error).__name__}") from error
        raise ours

    def _exported_for_all(self) -> tuple[_Exported, list[int]]:
        """A model with symbolic sizes, and the numbers of the calls that it is for."""
        given = [self._given(number)[1] for number in range(len(self._program.calls))]
        traced = self._traced(0, (tuple(pytree.tree_map(_every_dimension, given[0])),))
        with _making(traced):
            captured = capture(traced)
            symbols = Symbols.of(traced, captured)
        names = [source.name for source in captured.sources if not source.is_weight]
        chosen: dict[int, dict[str, int]] = {}
        for number, row in enumerate(map(pytree.tree_leaves, given)):
            found = {
                f"{name}.{dim}": size
                for name, leaf in zip(names, row, strict=True)
                if isinstance(leaf, torch.Tensor)
                for dim, size in enumerate(leaf.shape)
            }
            stated = {size.name: found[size.name] for size in symbols.sizes}
            alike = _numbers(row) == _numbers(pytree.tree_leaves(given[0]))
            if alike and _is_taken(symbols, stated):
                chosen[number] = stated
        sizes = [dict(items) for items in {tuple(row.items()): None for row in chosen.values()}]
        if not symbols.sizes or not sizes:
            raise Refused("no dynamic sizes")
        exported = _Exported(traced, sizes)
        try:
            programs = {tuple(one.sizes.items()): one for one in exported.model.specializations}
        except Exception:
            with _running(exported, EXPORT_ORACLES[-1]) as run:
                for number in chosen:
                    _ask_torch(run, self._given(number)[1])
            raise
        # Sizes that torch took for one in the example need not be one elsewhere.
        fitting = [
            number
            for number, row in chosen.items()
            if all(
                tuple(pytree.tree_leaves(given[number])[index].shape) == shape
                for index, shape in programs[tuple(row.items())].shapes().items()
            )
        ]
        return exported, fitting

    def _call(self, run: Callable[..., Any], number: int) -> Call:
        """The call, with everything that is not compared as it should be."""
        wanted = self._expected[number]
        made, given = self._given(number)
        plain = pytree.tree_map(_plain, given)
        pairs = zip(pytree.tree_leaves(plain), pytree.tree_leaves(given), strict=True)
        is_copied = any(one is not other for one, other in pairs)
        try:
            results = run(*plain)
        except Exception as error:
            error.__traceback__ = None
            return Call(error=error, error_in="call", arguments=wanted.arguments)
        arguments = {
            name: _as(Seen.of(made[name]), other) for name, other in wanted.arguments.items()
        }
        seen = replace(wanted, results={}, arguments=wanted.arguments if is_copied else arguments)
        leaves = pytree.tree_leaves(results, is_leaf=lambda item: hasattr(item, "__dlpack__"))
        if len(leaves) != len(wanted.results):
            seen.structure = f"{len(leaves)} results"
            return seen
        for (place, other), leaf in zip(wanted.results.items(), leaves, strict=True):
            if isinstance(other, Seen) and hasattr(leaf, "__dlpack__"):
                seen.results[place] = _as(Seen.of(_tensor(leaf)), other)
            else:
                seen.results[place] = leaf
        return seen


@contextmanager
def _running(exported: _Exported, oracle: str) -> Iterator[Callable[..., Any]]:
    """The model as it is called: saved and loaded, or as torch runs it."""
    if oracle:
        program = exported.program
        yield (program if oracle == EXPORT_ORACLES[0] else program.run_decompositions()).module()
        return
    with tempfile.TemporaryDirectory() as folder:
        exported.model.save(folder)
        with ExportedModel.load(folder, trusted=True).load_on(client()) as loaded:
            yield loaded


@contextmanager
def _making(program: ExportedProgram) -> Iterator[None]:
    """While the bridge makes a model of what torch.export gave.

    Raises:
        Refused: there can be no model, or torch itself does not decompose the program.
    """
    try:
        yield
    except NotExportable as error:
        raise Refused(f"NotExportable: {str(error).splitlines()[0][:80]}") from error
    except Exception:
        try:
            program.run_decompositions()
        except Exception as error:
            raise Refused(f"torch.export: {type(error).__name__}") from error
        raise


def _is_taken(symbols: Symbols, sizes: dict[str, int]) -> bool:
    """Whether the bridge makes a model of these sizes."""
    try:
        symbols.choices([sizes])
    except OptionError:
        return False
    return True


def _ask_torch(run: Callable[..., Any], given: list[Any]) -> None:
    """Run an exported program in PyTorch.

    Raises:
        Refused: it raises there, too: torch.export gave another program than the function.
    """
    try:
        run(*given)
    except Exception as error:
        raise Refused(f"torch.export's program: {type(error).__name__}") from error


def _every_dimension(value: Any) -> Any:
    """What torch.export is told of an argument: each of its sizes may be another one."""
    if not isinstance(value, torch.Tensor):
        return None
    return dict.fromkeys(range(value.dim()), Dim.AUTO)


def _numbers(leaves: list[Any]) -> list[str]:
    """What is part of a model."""
    return [repr(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor)]


def _plain(value: Any) -> Any:
    """Without conj and neg bits, which DLPack does not know."""
    if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()):
        return value.resolve_conj().resolve_neg()
    return value


def _as(seen: Seen, other: Seen) -> Seen:
    """With everything that is not compared as another one has it."""
    strides = other.strides if seen.shape == other.shape else (0,) * len(seen.shape)
    return replace(other, dtype=seen.dtype, shape=seen.shape, strides=strides, value=seen.value)


def _tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
