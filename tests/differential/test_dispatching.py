"""What is seen of a program's operators."""

from __future__ import annotations

import pytest
import torch

from tests.differential.dispatching import Dispatched


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda x: x.mul_(x[1]), True),
        (lambda x: x[:, 1:].copy_(x[:, :-1]), True),
        (lambda x: torch.add(x, x[0], out=x), True),
        (lambda x: x.mul_(x), False),
        (lambda x: x[0].mul_(x[1]), False),
        (lambda x: x[0] + x.mul_(2), False),
        (lambda x: x.mul_(x[1].clone()), False),
    ],
)
def test_reading_what_is_written_is_seen(write, expected) -> None:  # type: ignore[no-untyped-def]
    with Dispatched() as seen:
        # PyTorch does not see it where a tensor has gaps.
        write(torch.arange(24.0).view(3, 8)[:, ::2])
    assert seen.in_order is expected


def test_names_are_noted() -> None:
    with Dispatched() as seen:
        torch.ones(2).sin()
    assert seen.names == {"aten::ones", "aten::sin"}
