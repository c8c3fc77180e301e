"""Products of several tensors need no graph for each size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pjrt_bridge.torch_interop.compat.capture.products import _order
from tests.torch_interop.compat.capture.helpers import SIGNALS, check_few_graphs


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (
            torch.einsum("bcn,bdn,bcm->bdm", x, x.sin(), x)
            + torch.einsum("...cn,...dn,cd->...n", [x, x.cos(), torch.ones(3, 3)])[:, None]
        ),
        lambda x: torch.linalg.multi_dot([x[0], x[1].T, x[0].sin(), x[1, 0]]),
        lambda x: torch.linalg.multi_dot((x[0, 0], x[1].T, torch.ones(3))).reshape(1),
        lambda x: torch.linalg.multi_dot([x[0].T, x[1]]),
    ],
)
def test_few_graphs_serve_all_sizes(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check_few_graphs(SIGNALS, function)


def test_the_cheapest_order() -> None:
    assert _order(10, 100, 5, 50) == (0, 0)
    assert _order(50, 5, 100, 10) == (1, 0)
    # ((A (B C)) ((D E) F)), as in Cormen et al., "Introduction to Algorithms", 15.2.
    assert _order(30, 35, 15, 5, 10, 20, 25) == (1, 0, 1, 1, 0)
