"""The gradients of attention, as autograd writes them behind it in a joint graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.attention.elements import (
    ahead,
    are_equal,
    behind,
    has_shape,
    is_turned,
    origin,
    shape,
    turned,
)
from pjrt_bridge.torch_interop.passes.attention.scores import (
    PRODUCTS,
    ScoreStep,
    Written,
    number_of,
    side_of,
)


@dataclass(frozen=True)
class WrittenGradients:
    """Gradients as a graph has them.

    Attributes:
        grad_output: the gradient of the last product.
        slope: the product of that and the transposed values.
        of_query: the gradient of its factor; None where nothing needs it, as of the others.
        of_turned_key: that of the transposed keys.
        of_value: that of the values.
        scale: by which the first two are multiplied behind these nodes.
        nodes: all these nodes and those between them.
    """

    grad_output: fx.Node
    slope: fx.Node
    of_query: fx.Node | None
    of_turned_key: fx.Node | None
    of_value: fx.Node | None
    scale: float
    nodes: frozenset[fx.Node]

    @property
    def results(self) -> tuple[fx.Node | None, ...]:
        """Of query, turned key and value."""
        return self.of_query, self.of_turned_key, self.of_value


def gradients_of(written: Written) -> WrittenGradients | None:
    """The gradients of attention; None where a graph has none, or others."""
    for turned_value in _turned(written.value):
        for slope in _products(turned_value, side=1):
            found = _with(written, slope)
            if found is not None:
                return found
    return None


def _with(written: Written, slope: fx.Node) -> WrittenGradients | None:
    """Gradients by that of the softmax: the product of the output's and the transposed values."""
    grad_output = slope.args[0]
    assert isinstance(grad_output, fx.Node)
    weights = [node for node in written.nodes if origin(node) is written.softmax]
    nodes = {slope}
    last = _behind_softmax(written, slope, nodes)
    undone = None if last is None else _behind_steps(written.steps, last, nodes)
    if undone is None:
        return None
    scores, scale = undone
    of_query = _only(
        user
        for user in _products(scores, side=0)
        if is_turned(side_of(user, 1), written.turned_key)
    )
    of_turned_key = _only(
        user for user in _products(scores, side=1) if is_turned(side_of(user, 0), written.query)
    )
    of_value = None
    for node in weights:
        for turned_weights in _turned(node):
            for user in _products(turned_weights, side=0):
                if are_equal(side_of(user, 1), grad_output) and turned(turned_weights) is node:
                    of_value, nodes = user, nodes | {user, turned_weights}
    nodes |= {node for node in (of_query, of_turned_key) if node is not None}
    return WrittenGradients(
        grad_output, slope, of_query, of_turned_key, of_value, scale, frozenset(nodes)
    )


def _turned(node: fx.Node) -> list[fx.Node]:
    """The nodes that are the transposed of a node."""
    found = [user for user in node.users if turned(user) is node]
    inner = turned(node)
    return found if inner is None else [*found, inner]


def _products(factor: fx.Node, side: int) -> list[fx.Node]:
    return [
        user
        for user in factor.users
        if compat.operator_name(user.target) in PRODUCTS and user.args[side] is factor
    ]


def _only(found: Iterator[fx.Node]) -> fx.Node | None:
    nodes = list(found)
    return nodes[0] if len(nodes) == 1 else None


def _moved_on(node: fx.Node, nodes: set[fx.Node]) -> fx.Node:
    """The last of the nodes that have a node's elements, each with one user; all are added."""
    found = ahead(node)
    nodes.update(found.nodes)
    return found.same[-1]


def _behind_softmax(written: Written, slope: fx.Node, nodes: set[fx.Node]) -> fx.Node | None:
    """The gradient of the softmax: `weights * slope - weights * sum(weights * slope)`."""
    last = _moved_on(slope, nodes)
    users = list(last.users)
    if len(users) != 1:
        return None
    (user,) = users
    if compat.operator_name(user.target) == "aten._softmax_backward_data.default":
        is_same = user.args[0] is last and user.args[1] is written.softmax
        return user if is_same else None
    if not _is_product_with(user, last, written, nodes):
        return None
    total = [item for item in user.users if _is_sum(item, user)]
    if len(total) != 1 or len(user.users) != 2 or len(total[0].users) != 1:
        return None
    (spread,) = total[0].users
    if not _is_product_with(spread, total[0], written, nodes) or len(spread.users) != 1:
        return None
    (rest,) = spread.users
    if compat.operator_name(rest.target) != "aten.sub.Tensor" or rest.kwargs:
        return None
    if list(rest.args) != [user, spread]:
        return None
    nodes |= {user, total[0], spread, rest}
    return rest


def _is_product_with(node: fx.Node, one: fx.Node, written: Written, nodes: set[fx.Node]) -> bool:
    """Whether a node multiplies another one by the weights."""
    if compat.operator_name(node.target) != "aten.mul.Tensor":
        return False
    left, right = node.args
    other = right if left is one else left
    if not isinstance(other, fx.Node) or one not in (left, right):
        return False
    found = behind(other)
    nodes.update(found.nodes)
    return found.same[-1] is written.softmax and has_shape(other, shape(written.softmax))


def _is_sum(node: fx.Node, of: fx.Node) -> bool:
    if compat.operator_name(node.target) != "aten.sum.dim_IntList" or node.args[0] is not of:
        return False
    given = compat.bound_arguments(node)
    rank = compat.promise(of).dim()
    return [dim % rank for dim in given["dim"]] == [rank - 1] and bool(given["keepdim"])


def _behind_steps(
    steps: tuple[ScoreStep, ...], node: fx.Node, nodes: set[fx.Node]
) -> tuple[fx.Node, float] | None:
    """The gradient of the first product's result, and by what it is multiplied later."""
    later = 1.0
    for step in reversed(steps):
        node = _moved_on(node, nodes)
        if step.condition is not None:
            (user, *others) = node.users or (None,)
            if user is None or others or not _is_hidden(user, node, step):
                return None
            nodes.add(user)
            node = user
        elif step.added is None:
            (user, *others) = node.users or (None,)
            if user is not None and not others and _is_scaled(user, node, step.scale):
                nodes.add(user)
                node = user
            else:
                later *= step.scale
    return _moved_on(node, nodes), later


def _is_hidden(user: fx.Node, node: fx.Node, step: ScoreStep) -> bool:
    """Whether 0 takes the place of what a step hides."""
    if compat.operator_name(user.target) != "aten.where.self":
        return False
    condition, chosen, rest = user.args
    kept, hidden = (chosen, rest) if step.is_kept else (rest, chosen)
    assert step.condition is not None
    is_same = isinstance(condition, fx.Node) and are_equal(condition, step.condition)
    return is_same and kept is node and number_of(hidden) == 0.0


def _is_scaled(user: fx.Node, node: fx.Node, scale: float) -> bool:
    name = compat.operator_name(user.target) or ""
    if len(user.args) != 2 or node not in user.args:
        return False
    other = number_of(user.args[1] if user.args[0] is node else user.args[0])
    if other is None or not name.startswith(("aten.mul.", "aten.div.")):
        return False
    if name.startswith("aten.mul."):
        return other == scale
    return user.args[0] is node and 1 / other == scale
