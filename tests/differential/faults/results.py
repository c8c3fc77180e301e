"""Faults in what compiled graphs give and write, and in what is known of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind import sizes
from pjrt_bridge.torch_interop.bind.adapter import TorchAdapter
from pjrt_bridge.torch_interop.compiler import Compiler
from pjrt_bridge.torch_interop.passes import functionalize_rng as draws
from tests.differential.faults.registry import fault, fault_of

Change = Callable[[str, list[Any], list[Any]], list[Any]]
"""Takes the kind of graph, its arguments and its results; gives other results."""


@contextmanager
def _after(change: Change) -> Iterator[None]:
    compile = Compiler.compile

    def changed(self: Compiler, kind: str, graph: Any, inputs: Any) -> Any:
        run = compile(self, kind, graph, inputs)
        # The shortcut goes past what is called here.
        self._shortcut = None

        def wrapped(arguments: list[Any]) -> list[Any]:
            given = list(arguments)
            return change(kind, given, list(run(arguments)))

        return compat.boxed(wrapped)

    with mock.patch.object(Compiler, "compile", changed):
        yield


@contextmanager
def _outside(change: Change) -> Iterator[None]:
    """Change what Dynamo's code is given, after AOTAutograd has made views and gradients."""
    entrance = Compiler.entrance

    def changed(self: Compiler, compiled: Any, count: int) -> Any:
        run = entrance(self, compiled, count)

        def wrapped(*given: Any) -> list[Any]:
            flat = [item for part in given for item in (part if type(part) is list else [part])]
            return change("", flat, list(run(*given)))

        return wrapped

    with mock.patch.object(Compiler, "entrance", changed):
        yield


def _each(change: Callable[[torch.Tensor], torch.Tensor], *kinds: str) -> Any:
    """Change each tensor among the results."""

    def run(kind: str, given: list[Any], results: list[Any]) -> list[Any]:
        if kinds and kind not in kinds:
            return results
        return [change(item) if isinstance(item, torch.Tensor) else item for item in results]

    return _after(run)


@fault
def dropped_offset() -> Iterator[None]:
    """A result that begins later in its memory comes as one that begins at its start."""

    def change(result: torch.Tensor) -> torch.Tensor:
        return result.clone() if result.storage_offset() else result

    with _each(change):
        yield


@fault
def copied_aliases() -> Iterator[None]:
    """Results that share memory with arguments, or with each other, come as copies."""

    def change(kind: str, given: list[Any], results: list[Any]) -> list[Any]:
        tensors = [item for item in given if isinstance(item, torch.Tensor)]
        seen = {item.untyped_storage().data_ptr() for item in tensors}
        for at, item in enumerate(results):
            if isinstance(item, torch.Tensor):
                place = item.untyped_storage().data_ptr()
                if place in seen and not any(item is other for other in tensors):
                    results[at] = item.clone()
                seen.add(place)
        return results

    with _outside(change):
        yield


@fault
def wrong_strides() -> Iterator[None]:
    """Results of two dimensions lie by columns."""

    def change(result: torch.Tensor) -> torch.Tensor:
        if result.dim() != 2 or not result.is_contiguous():
            return result
        return result.t().contiguous().t()

    with _each(change, "inference", "forward"):
        yield


@fault_of("dtype.float64")
def narrowed_type() -> Iterator[None]:
    """Results in double precision come in single precision."""

    def change(result: torch.Tensor) -> torch.Tensor:
        return result.float() if result.dtype is torch.float64 else result

    with _each(change):
        yield


@fault
def swapped_results() -> Iterator[None]:
    """Two results of one shape and type change places."""

    def change(kind: str, given: list[Any], results: list[Any]) -> list[Any]:
        tensors = [at for at, item in enumerate(results) if isinstance(item, torch.Tensor)]
        for one in tensors:
            for other in tensors:
                left, right = results[one], results[other]
                if one < other and (left.shape, left.dtype) == (right.shape, right.dtype):
                    results[one], results[other] = right, left
                    return results
        return results

    with _after(change):
        yield


@fault
def scaled_gradient() -> Iterator[None]:
    """Gradients are too large by a thousandth."""

    def change(result: torch.Tensor) -> torch.Tensor:
        return result * 1.001 if result.dtype.is_floating_point else result

    with _each(change, "backward"):
        yield


@fault
def reused_memory() -> Iterator[None]:
    """A second call writes where the results of the first one lie."""
    kept: dict[Any, torch.Tensor] = {}

    def change(result: torch.Tensor) -> torch.Tensor:
        key = (tuple(result.shape), result.dtype)
        if not result.is_contiguous() or result.is_conj() or result.is_neg():
            return result
        if key in kept:
            return kept[key].copy_(result)
        kept[key] = result
        return result

    with _each(change, "inference"):
        yield


@fault
def lost_nan() -> Iterator[None]:
    """NaN comes as zero."""

    def change(result: torch.Tensor) -> torch.Tensor:
        if not result.dtype.is_floating_point or not bool(result.isnan().any()):
            return result
        return result.nan_to_num(0.0, torch.inf, -torch.inf)

    with _each(change):
        yield


@fault_of("elementwise.copy", "views.contiguous")
def returned_argument() -> Iterator[None]:
    """A result that equals an argument is the argument."""

    def change(kind: str, given: list[Any], results: list[Any]) -> list[Any]:
        for at, item in enumerate(results):
            for other in given:
                if isinstance(item, torch.Tensor) and isinstance(other, torch.Tensor):
                    alike = (item.shape, item.dtype) == (other.shape, other.dtype)
                    if alike and item.numel() and torch.equal(item, other):
                        results[at] = other.detach()
        return results

    with _after(change):
        yield


@fault
def lost_element() -> Iterator[None]:
    """The first element of a larger result is lost."""

    def change(result: torch.Tensor) -> torch.Tensor:
        if result.numel() < 4 or not result.is_contiguous() or result.dtype is torch.bool:
            return result
        result.view(-1)[0] = 0
        return result

    with _each(change, "inference"):
        yield


# -- what is written, and what is known of calls ---------------------------------------------------


@fault
def ignored_mutation() -> Iterator[None]:
    """Arguments of more than one dimension are not written into."""

    def update(self: TorchAdapter, argument: torch.Tensor, value: torch.Tensor) -> None:
        if argument.dim() < 2:
            argument.detach().copy_(value)

    with mock.patch.object(TorchAdapter, "assign", update):
        yield


@fault
def mutation_of_dense_only() -> Iterator[None]:
    """Arguments that do not lie row-major are not written into."""

    def update(self: TorchAdapter, argument: torch.Tensor, value: torch.Tensor) -> None:
        if argument.is_contiguous():
            argument.detach().copy_(value)

    with mock.patch.object(TorchAdapter, "assign", update):
        yield


@fault_of("scalars.argument_slice+numbers.alone", modes=("dynamic", "automatic"))
def stale_number() -> Iterator[None]:
    """A program of other numbers runs: they are not told apart."""
    size = sizes._size

    def stale(argument: Any) -> Any:
        return size(argument) if isinstance(argument, torch.Tensor) else type(argument)

    with mock.patch.object(sizes, "_size", stale):
        yield


@fault_of("random.draw", "random.dropout")
def same_draws() -> Iterator[None]:
    """Each call draws the numbers of the first one."""
    draw = draws.draw_keys

    def drawn(count: int) -> Any:
        state = torch.get_rng_state()
        torch.manual_seed(1)
        found = draw(count)
        torch.set_rng_state(state)
        return found

    with mock.patch.object(draws, "draw_keys", drawn):
        yield
