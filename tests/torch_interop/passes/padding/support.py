"""Compile with buckets, and compare with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.torch_interop.helpers import assert_same, leaves

BUCKETS = [4, 8]


def bucketed(function: Callable[..., Any], **settings: Any) -> Any:
    return torch.compile(
        function, backend="pjrt", fullgraph=True, options={"buckets": BUCKETS}, **settings
    )


def assert_equal(found: Any, expected: Any) -> None:
    """The same numbers in the same types, shapes and strides."""
    assert_same(found, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        # Of a single row torch's own kernels and promises disagree.
        assert 0 in one.shape or all(
            size == 1 or a == b
            for size, a, b in zip(one.shape, one.stride(), other.stride(), strict=True)
        )
    if isinstance(expected, tuple):
        ints = [item for item in expected if isinstance(item, int)]
        assert [item for item in found if isinstance(item, int)] == ints
