"""Compile for the device, and prove that the device was used."""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pjrt_bridge.torch_interop import compiled_graphs


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
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    if isinstance(tree, Sequence) or hasattr(tree, "__iter__"):
        return [leaf for item in tree for leaf in leaves(item)]
    return []


def assert_same(found: Any, expected: Any, *, rtol: float = 1e-4, atol: float = 1e-4) -> None:
    """Equal numbers, types, shapes and strides of all tensors in two results."""
    ours, theirs = leaves(found), leaves(expected)
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)


def assert_same_gradients(found: nn.Module, expected: nn.Module) -> None:
    """Gradients of all parameters agree within 1e-3 of the largest of each."""
    pairs = list(zip(found.parameters(), expected.parameters(), strict=True))
    assert pairs
    for one, other in pairs:
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            scale = float(other.grad.abs().max())
            assert float((one.grad - other.grad).abs().max()) <= 1e-3 * scale + 1e-6
