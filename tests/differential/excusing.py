"""What an oracle excuses: exceptions and layouts that PyTorch's own compiler has, too; no values.

An oracle is a second run of the program, without the bridge (`oracles.py`). A difference that it
shows as well is PyTorch's own. Of exceptions and layouts no more is said. Results that are wrong
without an exception remain a finding, of the severity "shared": users of the bridge get them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tests.differential.comparing import WRONG, Difference
from tests.differential.observing import Call
from tests.differential.oracles import OF_LAYOUT, PARTITIONED

_SILENT = frozenset(
    {
        "value",
        "gradient",
        "shape",
        "dtype",
        "type",
        "structure",
        "bits",
        "requires_grad",
        "distribution",
        "draws",
    }
)
"""Kinds of differences by which somebody computes with other numbers, and is not told."""


@dataclass
class Excused:
    """Differences by what one oracle says of them.

    Attributes:
        own: those that the oracle does not have.
        shared: silent ones that it has, too.
        torches: all others that it has.
    """

    own: list[Difference]
    shared: list[Difference]
    torches: list[Difference]


def asks(oracle: str, wrong: Sequence[Difference]) -> bool:
    """Whether an oracle has anything to say of these differences."""
    if not wrong:
        return False
    if oracle == PARTITIONED:
        return all("exception" in item.kind for item in wrong)
    return oracle not in OF_LAYOUT or any(item.severity != WRONG for item in wrong)


def excused(
    oracle: str,
    wrong: Sequence[Difference],
    theirs: Collection[Difference],
    calls: Sequence[Call],
    found: Sequence[Call],
) -> Excused:
    """Tell the bridge's own differences from those that an oracle has, too.

    Args:
        oracle: its name.
        wrong: how the run differs from eager mode.
        theirs: how it differs from the oracle.
        calls: what the oracle's calls did.
        found: what the run's calls did.
    """
    unlike = {item.key for item in theirs}
    laid = {
        (item.call, f"{item.place} after use")
        for item in wrong
        if item.kind == "strides" and item.key not in unlike
    }

    def is_own(item: Difference) -> bool:
        # Of a call in which it raises, an oracle gives no values.
        silent = item.kind in _SILENT and found[item.call].error is None
        if item.key in unlike or (silent and calls[item.call].error is not None):
            return True
        # Where elements lie decides which of them a result has that is resized.
        return (
            oracle in OF_LAYOUT and item.severity == WRONG and (item.call, item.place) not in laid
        )

    own = [item for item in wrong if is_own(item)]
    # Where torch itself lost an alias, the result lies elsewhere.
    lost = {
        (item.call, place)
        for item in wrong
        if item.kind == "alias" and item not in own
        for place in item.place.split(" and ")
    }
    # Where torch itself raises, or does not, arguments are as far as each backend had come.
    raised = {item.call for item in wrong if "exception" in item.kind and item not in own}
    own = [
        item
        for item in own
        if item.call not in raised
        and (item.kind != "offset" or (item.call, item.place) not in lost)
    ]
    silent = [
        item
        for item in wrong
        if item not in own
        and item.kind in _SILENT
        and (item.call, item.place) not in laid
        and item.call not in raised
        and found[item.call].error is None
        and oracle not in OF_LAYOUT
    ]
    return Excused(
        own,
        [replace(item, shared=True) for item in silent],
        [item for item in wrong if item not in own and item not in silent],
    )
