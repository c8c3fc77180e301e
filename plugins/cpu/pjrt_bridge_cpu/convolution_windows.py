"""Convolutions as kernels in C have them (`aten/native/convolution.h`): order, sizes, windows."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.stablehlo import Builder, Value

MOST_TAPS = 64
"""Elements of a channel's weights, at most."""

DTYPES = ("float32", "bfloat16")
"""Types of elements."""


def turned(b: Builder, x: Value, letters: str, first: str) -> Value:
    """A value whose dimensions have letters, with some of these first, and the others in order."""
    wanted = _with_first(letters, first)
    return x if letters == wanted else b.transpose(x, [letters.index(item) for item in wanted])


def turned_back(b: Builder, x: Value, letters: str, first: str) -> Value:
    """What `turned` makes of a value whose dimensions are to have letters, as these are."""
    given = _with_first(letters, first)
    return x if letters == given else b.transpose(x, [given.index(item) for item in letters])


def spatial_sizes(x: Value, letters: str, first: str) -> tuple[int, ...]:
    """The sizes that a value has behind the first dimensions once it is `turned`."""
    return tuple(x.shape[letters.index(item)] for item in _with_first(letters, first)[len(first) :])


def _with_first(letters: str, first: str) -> str:
    return first + "".join(sorted(set(letters) - set(first)))


def pairs(
    data: Sequence[int],
    result: Sequence[int],
    taps: Sequence[int],
    strides: Sequence[int],
    spread: Sequence[int],
    steps: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> list[int]:
    """The numbers of a window that kernels in C have for height and width; a line has height 1.

    Args:
        data: its sizes.
        result: those of the result.
        taps: those of the weights.
        strides: the distance of windows.
        spread: of the data's elements.
        steps: of the weights' elements.
        padding: how many zeros are before and behind the data.
    """
    lows = [low for low, _ in padding]
    found: list[int] = []
    numbers = (data, result, taps, strides, spread, steps, lows)
    for pair, one in zip(numbers, (1, 1, 1, 1, 1, 1, 0), strict=True):
        found += [*(one,) * (2 - len(pair)), *pair]
    return found
