"""What cannot be padded is refused with the reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from pjrt_bridge.torch_interop.passes.padding.buckets import Padding
from tests.torch_interop.passes.padding.row_values import (
    COLUMNS,
    DRAW,
    KEY,
    TABLE,
    WORDS,
    N,
    X,
)
from tests.torch_interop.passes.padding.rows import (
    refusals,
    symbolic,
)

MIXING: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "pooling behind the end": (
        lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
        (torch.randn(2, 3, N, 8),),
        "its windows reach behind the dimension",
    ),
    "means of what is inside": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        (torch.randn(2, 3, N, 8),),
        "it divides by how much of a window is inside",
    ),
    "embedding of it": (F.embedding, (COLUMNS[:2], X), "it looks up rows of the dimension"),
    "one number added at positions": (
        lambda i, t: torch.index_put(t, (i,), torch.tensor(1.0), accumulate=True),
        (WORDS, TABLE),
        "it adds one element at positions in the padding",
    ),
    "a permutation": (
        lambda x: DRAW.randperm(KEY, x.shape[0]),
        (X,),
        "it is not known what it does with",
    ),
    "a random number of what each element says": (
        lambda x: DRAW.bernoulli.Tensor(KEY, x.t(), x.t().sigmoid()),
        (X,),
        "it draws a number for each element",
    ),
    "arange that overflows": (
        lambda x: torch.arange(x.shape[0], dtype=torch.int8),
        (X,),
        "it may count further than the element type can",
    ),
    "an argument that is written into": (
        lambda x: x.copy_(x + 1),
        (X.clone(),),
        "it is written into",
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_cannot_be_padded_is_not_and_says_why(name: str) -> None:
    function, args, reason = MIXING[name]
    graph = symbolic(function, *args)
    (found,) = refusals(graph, args)
    assert reason in found
    assert Padding(graph, [64]).pad(list(args)) is None
