"""Checks of positions and divisors over a mesh: results of the program, made on request."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pjrt_bridge.torch_interop.sharding import Mesh, full, mark_sharding

pytestmark = pytest.mark.usefixtures("fresh")


def rows(table: Tensor, at: Tensor) -> Tensor:
    return table[at]


@pytest.mark.parametrize(
    ("function", "right", "wrong", "error", "said"),
    [
        (torch.floor_divide, 2, 0, RuntimeError, "ZeroDivisionError"),
        (torch.remainder, 3, 0, RuntimeError, "ZeroDivisionError"),
        (rows, 7, 8, IndexError, "found indices from 1 to 8, expected -8 to 7"),
    ],
)
@pytest.mark.parametrize("marked", [True, False])
def test_on_request(
    mesh: Mesh,
    function: Callable[[Tensor, Tensor], Tensor],
    right: int,
    wrong: int,
    error: type[Exception],
    said: str,
    *,
    marked: bool,
) -> None:
    """One device has the wrong number; the next call is as if nothing had been."""
    options = {"mesh": mesh, "check_indices": True}
    compiled = torch.compile(function, backend="pjrt", fullgraph=True, options=options)

    def given(values: Tensor) -> Tensor:
        return mark_sharding(values.clone(), mesh, ("dp",)) if marked else values.to("pjrt")

    x, y = torch.arange(8) + 1, torch.ones(8, dtype=torch.int64)
    for last in (right, wrong, right):
        y[7] = last
        if last == wrong:
            with pytest.raises(error, match=said):
                compiled(given(x), given(y))
        else:
            torch.testing.assert_close(full(compiled(given(x), given(y))), function(x, y))
