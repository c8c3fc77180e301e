"""Elements moved for operators that take a padded dimension with its padding elsewhere.

Views merge dimensions, and then padding of inner ones lies between what is to be kept. An operator
that counts positions along such a dimension, joins it with others, or combines it with one that was
merged of other sizes, gets it with its elements where it needs them, padding behind.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    Extent,
    MergedOtherwise,
    PaddedDims,
    Size,
    Symbol,
    product,
)
from pjrt_bridge.torch_interop.passes.padding.rows import (
    NOT_PADDED,
    PaddingRule,
    TensorPadding,
    Use,
    apply_rule,
)

_TIMES = 16
"""How often elements are moved for one call at most."""


@dataclass(frozen=True)
class Moved:
    """A dimension of an argument whose elements are moved.

    Attributes:
        node: the argument.
        dim: its dimension.
        found: the extent before.
        wanted: the extent after.
    """

    node: fx.Node
    dim: int
    found: Extent
    wanted: Extent

    def emit(self, emission: Emission) -> None:
        """Have the moved argument stand for it."""
        made = emission.merged(emission[self.node], self.dim, self.found, self.wanted)
        emission.change(self.node, made)


@dataclass(frozen=True)
class Applied:
    """The result of a rule for a call.

    Attributes:
        use: the call, with what is known of its arguments after elements were moved.
        results: what is known of its results.
        moved: what has to be moved, in order.
    """

    use: Use
    results: list[TensorPadding]
    moved: list[Moved]


def apply(
    node: fx.Node,
    rule: PaddingRule | None,
    symbols: Container[Symbol],
    known: Mapping[fx.Node, TensorPadding],
    hints: PaddedDims | None = None,
    suggest: Callable[[Extent, Extent], bool] = lambda found, wanted: False,
) -> Applied | None:
    """Apply a rule, with elements of arguments moved where it needs that.

    Args:
        node: the call.
        rule: of its operator.
        symbols: see `Use`.
        known: see `Use`.
        hints: see `Use`.
        suggest: asked first whether something may be merged of several sizes from the beginning.

    Returns:
        None where it may.

    Raises:
        MixesRows: it cannot be padded, or it is not known how.
    """
    own = dict(known)
    moved: list[Moved] = []
    equal: list[tuple[Size, Size]] = []
    for _ in range(_TIMES):
        use = Use(node, symbols, own, hints)
        use.equal += equal
        try:
            results = apply_rule(use, rule)
        except MergedOtherwise as mixing:
            found, wanted = mixing.found, mixing.wanted
            if not (mixing.equal or compat.is_same_size(product(found), product(wanted))):
                raise
            if mixing.by_hint and suggest(found, wanted):
                return None
            steps = _steps(use, own, found, wanted) or _steps(use, own, wanted, found)
            if not steps:
                raise
            moved += steps
            equal += mixing.equal
            continue
        return Applied(use, results, moved)
    raise MergedOtherwise(found, wanted, by_hint=False)


def _steps(
    use: Use, known: dict[fx.Node, TensorPadding], found: Extent, wanted: Extent
) -> list[Moved]:
    """Moves of all dimensions of an extent; what is known of their tensors is changed."""
    steps = []
    for node in use.tensors:
        dims = known.get(node, NOT_PADDED).dims
        inside = [dim for dim, extent in dims.items() if extent == found]
        if inside:
            known[node] = TensorPadding({**dims, **dict.fromkeys(inside, wanted)})
            steps += [Moved(node, dim, found, wanted) for dim in inside]
    return steps
