"""Parts of a tensor that are written with what is computed of the same memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import pjrt_bridge
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge_cpu.overwriting import Overwrites
from tests.torch_interop.helpers import compiled

pytestmark = pytest.mark.usefixtures("fresh")


def overlapping(memory: Tensor) -> Tensor:
    memory[1:].copy_(memory[:-1] * 2)
    return memory[:-1] + 1


def flat(memory: Tensor) -> Tensor:
    memory.view(-1)[4:] = memory.view(-1)[:-4] * 2
    return memory[:4] + 1


def strided(memory: Tensor) -> Tensor:
    memory.as_strided((4, 4), (4, 1), 4).copy_(memory[:4] * 2)
    return memory[:4] + 1


def intermediate(memory: Tensor) -> Tensor:
    found = memory * 1.5
    found.view(-1)[4:] = found[:4].reshape(16) * 2
    return found


def turned(memory: Tensor) -> Tensor:
    found = memory.view(2, 2, 5).transpose(0, 1) + 1
    found.reshape(4, 5)[1:] = found.reshape(4, 5)[:-1].clone()
    found[:, 1:] = found[:, :1] * 3
    return found


def upwards(memory: Tensor) -> Tensor:
    memory.view(2, 10)[:, :-3] = memory.view(2, 10)[:, 3:] - 1
    return memory + 1


WRITES = (overlapping, flat, strided, intermediate, turned, upwards)


@pytest.mark.parametrize("write", WRITES)
def test_what_is_read_was_not_written_yet(write: Callable[[Tensor], Tensor]) -> None:
    given, memory = (torch.arange(1.0, 21.0).view(5, 4) for _ in range(2))
    expected = write(given)
    found = compiled(write)(memory)
    assert torch.equal(found, expected)
    assert torch.equal(memory, given)


def test_arguments_that_overlap() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.copy_(y * 2)
        return y + 1

    for dynamic in (False, True):
        torch._dynamo.reset()
        run = torch.compile(function, backend="pjrt", dynamic=dynamic)
        given, memory = (torch.arange(1.0, 21.0).view(5, 4) for _ in range(2))
        expected = function(given[1:], given[:-1])
        assert torch.equal(run(memory[1:], memory[:-1]), expected)
        assert torch.equal(memory, given)


@pytest.mark.parametrize("start", [(0, 0), (1, 1), (3, 1), (2, 0)])
@pytest.mark.parametrize("sizes", [(2, 3), (1, 4), (2, 1), (5, 4)])
def test_a_part_anywhere(start: tuple[int, int], sizes: tuple[int, int]) -> None:
    first = [min(at, whole - size) for at, whole, size in zip(start, (5, 4), sizes, strict=True)]
    box = tuple(slice(at, at + size) for at, size in zip(first, sizes, strict=True))

    def function(x: Tensor) -> Tensor:
        found = x.reshape(5, 4) + 0.5
        found[box] = found[box].flip(0) * 2
        return found

    x = torch.arange(20.0)
    assert torch.equal(compiled(function)(x), function(x))


def test_the_plugin_has_the_kernel() -> None:
    assert isinstance(kernels_of(pjrt_bridge.client("cpu")), Overwrites)
