"""Compile, run next to eager, and see what ran where."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same, leaves


def mixed(function: Callable[..., Any], **how: Any) -> Any:
    """The function compiled by the backend, the host allowed."""
    return torch.compile(function, backend="pjrt", **how)


def device_segments() -> list[int]:
    """Executables of each graph that was compiled since the last reset, oldest first."""
    return [graph.on_device for graph in compiled_graphs() if graph.within is None]


def shared_memory(tensors: Sequence[torch.Tensor]) -> list[int]:
    """For each tensor the index of the first one that has the same storage."""
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [storages.index(storage) for storage in storages]


def check(
    function: Callable[..., Any],
    *arguments: Any,
    segments: int = 1,
    calls: int = 2,
    memory: bool = False,
    run: Any = None,
    **how: Any,
) -> Any:
    """Compare some calls with eager: results, and what became of the arguments.

    Args:
        function: what eager runs.
        arguments: of every call; each side works on copies that alias as these do.
        segments: how many executables there must be at least, in all.
        calls: one after the other, with the same arguments.
        memory: whether tensors must share memory where they do in eager.
        run: the function where it is compiled already.
        how: keywords of torch.compile.

    Returns:
        The compiled function.
    """
    run = mixed(function, **how) if run is None else run
    ours, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
    for _ in range(calls):
        found, expected = run(*ours), function(*theirs)
        assert_same([*leaves(found), *leaves(ours)], [*leaves(expected), *leaves(theirs)])
        assert _shape(found) == _shape(expected)
        if memory:
            assert shared_memory([*leaves(found), *leaves(ours)]) == shared_memory(
                [*leaves(expected), *leaves(theirs)]
            )
    assert sum(device_segments()) >= segments, device_segments()
    return run


def _shape(tree: Any) -> Any:
    """A result with its tensors left out: containers, numbers and None."""
    if isinstance(tree, torch.Tensor):
        return torch.Tensor
    if isinstance(tree, (tuple, list)):
        return tuple(map(_shape, tree))
    if isinstance(tree, dict):
        return {key: _shape(value) for key, value in tree.items()}
    return type(tree), tree
