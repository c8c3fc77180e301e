"""Memory of tensors of changing sizes, addressed by strides."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same

pytestmark = pytest.mark.usefixtures("fresh")


def windows(x: Tensor) -> Any:
    y = torch.tanh(x)
    return y.as_strided((x.shape[0] - 3, 4), (1, 1)).mean(1)


def every_second_row(x: Tensor) -> Any:
    y = x * 2
    return y.as_strided((y.shape[0] // 2, 3), (6, 1), 3) + 1


def chunks(x: Tensor) -> Any:
    """Overlapping chunks, as in attention within a window."""
    y = x.exp().transpose(0, 1).reshape(x.shape[1], x.shape[0] // 4, 4, x.shape[2])
    size, stride = list(y.shape), list(y.stride())
    size[1], stride[1] = size[1] * 2 - 1, stride[1] // 2
    return y.as_strided(size, stride).sum(2)


def chunks_in_other_words(x: Tensor) -> Any:
    """Chunks whose number torch does not know to be a divisor, then all rows again."""
    y = (x * 2).view(x.shape[0] // 4, 4, 2)
    size, stride = list(y.shape), list(y.stride())
    size[0], stride[0] = size[0] * 2 - 1, stride[0] // 2
    made = y.as_strided(size, stride).exp()[::2].reshape(1, -1, 2)
    return (made.transpose(0, 1) + 1).reshape(x.shape[0], 2).contiguous() * x


def transposed(x: Tensor) -> Any:
    """The memory of a tensor that is not row-major."""
    y = (x.t() + 1).as_strided((x.shape[0] - 1, x.shape[1]), (x.shape[1], 1), x.shape[1])
    return y * 2


def of_an_argument(x: Tensor) -> Any:
    return x.as_strided((x.shape[0] - 1, 2), (x.shape[1], x.shape[1])) * 3


def diagonal(x: Tensor) -> Any:
    y = x @ x.t()
    return y.as_strided((x.shape[0],), (x.shape[0] + 1,)).exp()


def one_element(x: Tensor) -> Any:
    y = x + 1
    return y.as_strided((), (), y.shape[0] // 2) * y.sum()


def written(x: Tensor) -> Any:
    y, n = x * 2, x.shape[0]
    return torch.as_strided_scatter(y, y[: n - 1, 0] * 5, (n - 1,), (x.shape[1],), 1).sin()


def written_in_place(x: Tensor) -> Any:
    y = (x @ x.t()).clone()
    y.as_strided((x.shape[0],), (x.shape[0] + 1,)).mul_(3)
    return y * 2


SIZES = (5, 8, 13, 21, 34, 6, 55, 7, 30)
CASES: dict[str, tuple[Callable[[Tensor], Any], Callable[[int], Tensor]]] = {
    "windows": (windows, torch.randn),
    "every second row": (every_second_row, lambda n: torch.randn(n, 3)),
    "chunks": (chunks, lambda n: torch.randn(4 * n, 2, 3)),
    "in other words": (chunks_in_other_words, lambda n: torch.randn(4 * n, 2)),
    "transposed": (transposed, lambda n: torch.randn(n, 3)),
    "of an argument": (of_an_argument, lambda n: torch.randn(n, 3)),
    "diagonal": (diagonal, lambda n: torch.randn(n, 3)),
    "one element": (one_element, torch.randn),
    "written": (written, lambda n: torch.randn(n, 3)),
    "written in place": (written_in_place, lambda n: torch.randn(n, 3)),
}
SEVERAL_TIMES = ("windows", "chunks", "in other words", "of an argument")


@pytest.mark.parametrize("case", CASES)
def test_memory_addressed_by_strides(case: str) -> None:
    function, make = CASES[case]
    compiled = torch.compile(function, backend="pjrt", fullgraph=True)
    for size in SIZES:
        x = make(size)
        assert_same(compiled(x), function(x), rtol=1e-5, atol=1e-5)
    programs = [segment for graph in compiled_graphs() for segment in graph.segments]
    assert {segment.placement for segment in programs} == {"device"}
    assert len(programs) <= 3


# PyTorch traces the gradient of elements that are read several times for each size alone.
@pytest.mark.parametrize("case", [case for case in CASES if case not in SEVERAL_TIMES])
def test_gradients(case: str) -> None:
    function, make = CASES[case]
    compiled = torch.compile(function, backend="pjrt", fullgraph=True)
    for size in SIZES:
        x = make(size)
        found = []
        for call in (compiled, function):
            leaf = x.clone().requires_grad_()
            result = call(leaf)
            result.square().sum().backward()
            found.append([result, leaf.grad])
        assert_same(*found, rtol=1e-4, atol=1e-4)
    programs = [segment for graph in compiled_graphs() for segment in graph.segments]
    assert {segment.placement for segment in programs} == {"device"}
    assert len(programs) <= 6


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_memory_around_an_argument_is_read_for_each_size() -> None:
    def beyond(x: Tensor) -> Tensor:
        return x.as_strided((x.shape[0], 4), (4, 1)) + 1

    compiled = torch.compile(beyond, backend="pjrt", dynamic=True)
    for size in (5, 3, 8, 6, 7):
        x = torch.randn(size, 4)[:, :3]
        assert_same(compiled(x), beyond(x))
