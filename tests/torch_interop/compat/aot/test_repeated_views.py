"""Results that are views of arguments, where AOTAutograd repeats the views at another place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("fresh")

VIEWS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "of all": lambda x, n: x.reshape(x.shape[0], -1).view(torch.int16),
    "behind a place": lambda x, n: x[n:].view(torch.int16),
    "of wider elements": lambda x, n: x[n:].reshape(-1).view(torch.float64),
    "of elements as wide": lambda x, n: x[n:].view(torch.int32),
    "of parts": lambda x, n: torch.view_as_real(x[n:].view(torch.complex64)),
    "of bytes": lambda x, n: x[n:].view(torch.complex64).view(torch.uint8),
    "what was written": lambda x, n: x[n:].add_(1).view(torch.uint8),
    "beside what is computed": lambda x, n: (x[n:].view(torch.int16), x.sum()),
}

WITHOUT_GRADIENT = ("of parts", "of bytes", "what was written")
"""Those that PyTorch refuses of a leaf that needs a gradient."""


@pytest.mark.parametrize(
    ("kind", "trains"),
    [(kind, False) for kind in VIEWS]
    + [(kind, True) for kind in VIEWS if kind not in WITHOUT_GRADIENT],
)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("first", [0, 1])
def test_a_result_lies_in_the_memory_of_its_argument(
    kind: str, dynamic: bool | None, first: int, trains: bool
) -> None:
    function = VIEWS[kind]
    compiled: Any = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for rows, place in ((5, 1), (4, 0), (6, 3)):
        data = torch.arange(rows * 8.0).reshape(rows, 4, 2)
        results = []
        for run in (compiled, function):
            whole = data.clone()
            argument = whole[first:].requires_grad_(trains)
            result = run(argument, place)
            view = result[0] if isinstance(result, tuple) else result
            assert view.untyped_storage().data_ptr() == whole.data_ptr()
            results.append((view, whole))
        (view, whole), (expected, expected_whole) = results
        assert (view.dtype, view.shape, view.stride(), view.storage_offset()) == (
            expected.dtype,
            expected.shape,
            expected.stride(),
            expected.storage_offset(),
        )
        torch.testing.assert_close(view, expected, rtol=0, atol=0)
        torch.testing.assert_close(whole, expected_whole, rtol=0, atol=0)
        assert view.requires_grad == expected.requires_grad


OF_OVERLAPPING: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "a row": lambda x, y: x[1:2],
    "every second row": lambda x, y: x[::2],
    "the last rows": lambda x, y: x[-2:],
    "a part": lambda x, y: x.split(2)[1],
    "parts of a size of its own": lambda x, y: y.split(1),
    "windows": lambda x, y: x.unfold(0, 2, 1),
    "the diagonal": lambda x, y: x.diagonal(),
    "in one line": lambda x, y: y.view(-1)[2:],
    "transposed": lambda x, y: x.t()[1:],
    "expanded": lambda x, y: y.expand(2, -1, -1),
    "one of each": lambda x, y: (x[1:], y[1:]),
    "itself": lambda x, y: x,
}


@pytest.mark.parametrize("kind", OF_OVERLAPPING)
@pytest.mark.parametrize("written", [0, 1])
@pytest.mark.parametrize("dynamic", [None, True])
def test_views_of_arguments_in_one_memory_that_is_written_into(
    kind: str, written: int, dynamic: bool | None
) -> None:
    view = OF_OVERLAPPING[kind]

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        (x, y)[written].mul_(2)
        return view(x, y)

    compiled: Any = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for rows in (5, 7, 6):
        results = []
        for run in (compiled, function):
            whole = torch.arange(rows * 4.0).reshape(rows, 4)
            found = run(whole[1:], whole[:-1])
            # Writing into a result changes the arguments.
            views = found if isinstance(found, tuple) else (found,)
            if kind not in ("windows", "expanded"):
                views[-1].fill_(-1)
            results.append([*views, whole])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
            assert one.storage_offset() == other.storage_offset()
