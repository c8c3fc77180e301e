"""What checks are written with: expectations that raise `Fail` with what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt_bridge.errors import PjrtError
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance.outcomes import Fail

ADD = """
module @add { func.func @main(%a: tensor<64xf32>, %b: tensor<64xf32>) -> tensor<64xf32> {
  %0 = stablehlo.add %a, %b : tensor<64xf32>
  return %0 : tensor<64xf32> } }
"""
"""The program that checks run where it matters little what is computed."""


def require(condition: object, otherwise: str) -> None:
    """Raise `Fail` with a text unless the condition holds."""
    if not condition:
        raise Fail(otherwise)


def equal(found: object, expected: object, what: str) -> None:
    """Raise `Fail` unless two values are equal."""
    if found != expected:
        raise Fail(f"{what}: found {found!r}, expected {expected!r}")


def same(found: Array, expected: Array, what: str) -> None:
    """Raise `Fail` unless two arrays have the same shape, type and bits."""
    equal((found.shape, found.dtype), (expected.shape, expected.dtype), f"{what}: shape and type")
    bits = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (found, expected)]
    if not np.array_equal(bits[0], bits[1]):
        size = max(found.dtype.itemsize, 1)
        wrong = np.flatnonzero((bits[0] != bits[1]).reshape(-1, size).any(axis=1))
        where = np.unravel_index(int(wrong[0]), found.shape)
        index = tuple(int(i) for i in where)
        raise Fail(
            f"{what}: {len(wrong)} of {found.size} elements differ; at {list(index)} found "
            f"{found[index]!r}, expected {expected[index]!r}"
        )


def refused(action: Callable[[], Any], what: str) -> PjrtError:
    """The clean error that an action has to end in; `Fail` where it succeeds."""
    try:
        found = action()
    except PjrtError as error:
        require(error.message.strip(), f"{what}: refused with {error.code!r}, but without a text")
        return error
    raise Fail(f"{what}: accepted (it gave {found!r}), expected an error")


def works(client: Client, after: str) -> None:
    """Raise `Fail` unless a client still computes, after something went wrong."""
    a = np.arange(64, dtype=np.float32)
    try:
        with client.compile(ADD) as executable:
            (result,) = executable(a, a)
            found = result.to_numpy()
    except PjrtError as error:
        raise Fail(f"the client does not compute any more after {after}: {error}") from error
    same(found, a + a, f"a sum after {after}")


def distinct(items: Sequence[Any], what: str) -> None:
    """Raise `Fail` if an item occurs twice."""
    twice = [item for index, item in enumerate(items) if item in items[:index]]
    require(not twice, f"{what}: {twice[:1]} occurs twice in {list(items)}")
