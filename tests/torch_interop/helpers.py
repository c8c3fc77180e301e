"""Compile for the device, and prove that the device was used."""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from pjrt_bridge.torch_interop import compiled_graphs
from tests.comparing import EXACT, Tolerance, difference, largest, number_difference


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """The function compiled by the backend; the host is forbidden unless options say otherwise."""
    return torch.compile(function, backend="pjrt", options={"fallback": "error", **options})


def assert_compiled(*kinds: str) -> None:
    """These graphs were compiled since the last reset, in this order, each of one segment."""
    graphs = compiled_graphs()
    assert [(graph.kind, graph.on_device, graph.fallback_reasons) for graph in graphs] == [
        (kind, 1, ()) for kind in kinds
    ]
    assert all(graph.plugin == "cpu" and graph.operations > 0 for graph in graphs)


TRAINING = ("forward", "backward")


def placements() -> list[str]:
    """Where the segments of all graphs that were compiled since the last reset run."""
    return [segment.placement for graph in compiled_graphs() for segment in graph.segments]


class Refused(Exception):
    """What a custom operator raises."""


@contextmanager
def custom_operators(
    namespace: str, operators: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]]
) -> Iterator[None]:
    """Operators that no lowering knows, by schema, each with its kernel and its fake kernel."""
    library = torch.library.Library(namespace, "DEF")
    for schema, (kernel, fake) in operators.items():
        name = schema.partition("(")[0]
        library.define(schema)
        library.impl(name, kernel, "CompositeExplicitAutograd")
        library._register_fake(name, fake)
    yield
    library._destroy()


def in_threads(work: Callable[..., object], arguments: Iterable[Sequence[Any]]) -> None:
    """Call a function in a thread for each of several arguments, and wait for all threads."""
    threads = [threading.Thread(target=work, args=one) for one in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def twins(model: nn.Module) -> tuple[nn.Module, Any]:
    """The model, and a compiled copy with parameters of its own."""
    return model, compiled(copy.deepcopy(model))


def leaves(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested results, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def assert_same(found: Any, expected: Any, *, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Equal structure, types, shapes, strides and numbers of two results.

    Args:
        found: judged.
        expected: the oracle's.
        rtol: by which part of itself an element may differ.
        atol: by which part of the largest element of its tensor.
    """
    ours, theirs = (
        [(pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(tree)[0]]
        for tree in (found, expected)
    )
    assert [place for place, _ in ours] == [place for place, _ in theirs] != []
    tolerance = Tolerance(rtol, atol)
    for (place, one), (_, other) in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            assert isinstance(one, torch.Tensor), f"{place}: {one!r} is no tensor"
            exact = not (other.is_floating_point() or other.is_complex())
            problem = difference(one, other, EXACT if exact else tolerance)
            assert problem is None, f"{place}: {problem}"
        else:
            assert type(one) is type(other), place
            assert one == other or one != one != other, place


def assert_same_gradients(found: nn.Module, expected: nn.Module) -> None:
    """Gradients of all parameters agree within 1e-3 of the largest element of each.

    Those of less than 1e-3 of the largest of all count as if they were that: some, such as that of
    a bias before a batch norm, are zero but for rounding.
    """
    pairs = list(zip(found.parameters(), expected.parameters(), strict=True))
    assert pairs
    least = 1e-3 * max(largest(other.grad) for _, other in pairs if other.grad is not None)
    for one, other in pairs:
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            problem = number_difference(one.grad, other.grad, Tolerance(0.0, 1e-3), least=least)
            assert problem is None, problem
