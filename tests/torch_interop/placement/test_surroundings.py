"""`as_strided` reads memory around an argument that is a part of a larger tensor."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.torch_interop.helpers import placements

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning"),
]

PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda memory: memory[2:6],
    "columns": lambda memory: memory[:4, 1:],
    "every second": lambda memory: memory[1:5, ::2],
    "transposed": lambda memory: memory.t()[1:5],
    "last row": lambda memory: memory[5:],
}
WRITES: dict[str, Callable[[Tensor], object]] = {
    "nothing": lambda x: None,
    "row": lambda x: x[0].fill_(-1),
    "rows": lambda x: x[1:].mul_(2),
    "flat": lambda x: x.select(0, -1)[1::2].fill_(0),
    "chain": lambda x: x[0].unsqueeze(0)[:, 1:].add_(5),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_elements_around_an_argument(
    part: Callable[[Tensor], Tensor], write: Callable[[Tensor], object], dynamic: bool
) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        write(x)
        return x.as_strided((5,), (2,), 2) * 2, x + 1

    def memory() -> Tensor:
        return torch.arange(36.0).reshape(6, 6)

    run = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for _ in range(2):
        given, found = memory(), memory()
        torch.testing.assert_close(run(part(found)), function(part(given)), rtol=0, atol=0)
        assert torch.equal(found, given)


@pytest.mark.parametrize("dynamic", [False, True])
def test_elements_behind_an_argument_whose_storage_was_made_larger(dynamic: bool) -> None:
    def function(x: Tensor) -> Tensor:
        behind = x[2:]
        product = torch.mul(torch.outer(x, x), 2, out=x[1:])
        behind.fill_(9)
        return product[[1, 1, 2]]

    run = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for size in (5, 4, 5):
        given, found = torch.arange(size), torch.arange(size)
        with pytest.warns(UserWarning, match="was resized"):
            torch.testing.assert_close(run(found), function(given), rtol=0, atol=0)
        assert torch.equal(found, given)
        assert found.untyped_storage().nbytes() == given.untyped_storage().nbytes()


@pytest.mark.parametrize("intermediate", [False, True])
def test_elements_around_a_row_of_a_tensor_whose_size_changes(intermediate: bool) -> None:
    def function(x: Tensor) -> Tensor:
        rows = x * 2 if intermediate else x
        return rows[-1].as_strided((2, 3), (0, 1), 2) + 1

    run = torch.compile(function, backend="pjrt", dynamic=True)
    for rows in (2, 3, 5, 2):
        x = torch.arange(4.0 * rows).reshape(rows, 4)
        torch.testing.assert_close(run(x), function(x), rtol=0, atol=0)


def test_an_offset_that_changes() -> None:
    def function(x: Tensor) -> Tensor:
        x[1:].mul_(2)
        return x.as_strided((5,), (2,), 2) * 2

    run = torch.compile(function, backend="pjrt", dynamic=False)
    for first in (0, 1, 0, 3, 3):
        given, found = (torch.arange(36.0).reshape(6, 6) for _ in range(2))
        expected = function(given[first : first + 3])
        assert torch.equal(run(found[first : first + 3]), expected)
        assert torch.equal(found, given)


def test_a_whole_argument_is_read_on_the_device() -> None:
    def function(x: Tensor) -> Tensor:
        x[0] = 1
        return x.as_strided((5,), (2,), 2) * 2

    run = torch.compile(function, backend="pjrt")
    expected = function(torch.arange(36.0).reshape(6, 6))
    assert torch.equal(run(torch.arange(36.0).reshape(6, 6)), expected)
    assert placements() == ["device"]


def test_an_error_is_that_of_the_index() -> None:
    def function(x: Tensor) -> Tensor:
        x[-1][2::2] = False
        return x.as_strided((7,), (2,), 2)[torch.tensor([0, 9])]

    run = torch.compile(function, backend="pjrt", options={"check_indices": True})
    memory = torch.ones(3, 6, dtype=torch.bool)
    with pytest.raises(IndexError):
        run(memory[2:])
