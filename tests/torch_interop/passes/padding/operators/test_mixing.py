"""What cannot be padded is refused with the reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop.passes.padding.buckets import GraphPadding
from tests.torch_interop.passes.padding.row_values import (
    DRAW,
    KEY,
    X,
)
from tests.torch_interop.passes.padding.rows import (
    refusals,
    symbolic,
)

MIXING: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "a random number of what each element says": (
        lambda x: DRAW.bernoulli.Tensor(KEY, x.t(), x.t().sigmoid()),
        (X,),
        "it draws a number for each element",
    ),
    "bins between extremes": (
        lambda x: torch.histc(x, 3),
        (X[:, 0],),
        "its bins are between the extremes",
    ),
    "fractions that are counted": (
        lambda x: torch.arange(x.shape[0] * 0.5, x.shape[0] * 1.0),
        (X,),
        "it counts in steps of a fraction",
    ),
    "arange that overflows": (
        lambda x: torch.arange(x.shape[0], dtype=torch.int8),
        (X,),
        "it may count further than the element type can",
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_cannot_be_padded_is_not_and_says_why(name: str) -> None:
    function, args, reason = MIXING[name]
    graph = symbolic(function, *args)
    (found,) = refusals(graph, args)
    assert reason in found
    assert GraphPadding(graph, [64]).pad(list(args)) is None
