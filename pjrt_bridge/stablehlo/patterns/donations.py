"""Arguments whose memory results of a function take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pjrt_bridge.stablehlo.patterns import stores
from pjrt_bridge.stablehlo.patterns.reading import integers

_DEPTH = 4
"""Operations that are followed from a value to the end of the function."""


def may_take_memory(end: Any, result: int) -> bool:
    """Whether a result of the function that ends here may take the memory of an argument."""
    alias = _alias(result)
    return any(alias in said or "jax.buffer_donor" in said for said in _said(end))


def donors(value: Any, order: tuple[int, ...], depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """The arguments whose memory a value takes as a result of its function.

    Args:
        value: of the program.
        order: its dimensions, as those of the value that is asked about.
        depth: operations between the two.

    Returns:
        Each argument, with the order in which its memory has the dimensions.
    """
    for use in value.uses:
        user = getattr(use.owner, "operation", use.owner)
        if user.name == "func.return":
            alias = _alias(use.operand_number)
            for index, said in enumerate(_said(user)):
                if alias in said:
                    yield user.block.arguments[index], order
        elif depth == _DEPTH:
            continue
        elif user.name == "func.call" and stores.gives_back(user):
            yield from donors(user.results[0], order, depth + 1)
        elif user.name == "stablehlo.transpose":
            turned = tuple(order[dim] for dim in integers(user, "permutation"))
            yield from donors(user.results[0], turned, depth + 1)


def _alias(result: int) -> str:
    return f"tf.aliasing_output = {result} :"


def _said(end: Any) -> list[str]:
    """What a function says of each of its arguments."""
    attributes = end.parent.attributes
    return [str(item) for item in attributes["arg_attrs"]] if "arg_attrs" in attributes else []
