"""The arguments of programs are what the programs say: a view only where one is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.differential.draft import COMPLEX, FLOATS, INTEGERS
from tests.differential.residing import on_device
from tests.differential.values import fine, numbers, order, positions, special

MAKERS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "numbers": lambda dtype: numbers((3, 2), dtype, 1),
    "a number": lambda dtype: numbers((), dtype, 1),
    "none": lambda dtype: numbers((0, 2), dtype, 1),
    "fine": lambda dtype: fine((3, 2), dtype, 1),
    "special": lambda dtype: special((3, 2), dtype, 1),
    "positions": lambda dtype: positions((3,), 2, 1),
    "order": lambda dtype: order(3, 1),
}


@pytest.mark.parametrize("name", MAKERS)
def test_arguments_have_memory_of_their_own(name: str) -> None:
    every = (*FLOATS, *INTEGERS, *COMPLEX, torch.bool)
    for dtype in FLOATS if name in ("fine", "special") else every:
        made = MAKERS[name](dtype)
        with on_device("async"):
            found = MAKERS[name](dtype)
            assert torch.equal(found.cpu(), made) or name == "special"
        for tensor in (made, found):
            assert not tensor._is_view()
            assert tensor.is_contiguous()
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
