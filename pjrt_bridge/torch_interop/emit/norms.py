"""RMS norms of a graph, which models write out: `x * rsqrt(mean(x * x) + eps) * weight`.

PyTorch decomposes its own into the same operators. A target that has a kernel for it computes all
of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import Norm
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.torch_interop import compat

_LEAST = 1 << 14
"""Elements. Of fewer no target has a kernel."""


@dataclass(frozen=True)
class FoundNorm:
    """The nodes of an RMS norm.

    Attributes:
        x: the value that is normalized, as the graph has it in float32.
        weight: of the shape of the last dimensions, with leading ones; None: ones.
        how: the numbers.
        deviation: the node of the reciprocal standard deviation, which others may read; or that of
            the standard deviation.
        is_reciprocal: whether it is the reciprocal.
        nodes: all that nothing else needs, but for `deviation`, in order; the last is the result.
    """

    x: fx.Node
    weight: fx.Node | None
    how: Norm
    deviation: fx.Node
    is_reciprocal: bool
    nodes: Sequence[fx.Node]


def find_norms(graph: fx.Graph) -> Iterator[FoundNorm]:
    """The RMS norms of a functional ATen graph whose sizes are known."""
    at: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if _name(node) in ("aten.rsqrt.default", "aten.sqrt.default", "aten.pow.Tensor_Scalar"):
            at = at or {each: index for index, each in enumerate(graph.nodes)}
            found = _norm(node)
            # What others read is there when the result is.
            if found is not None and all(
                user in found.nodes or at[user] > at[found.nodes[-1]] for user in node.users
            ):
                yield found


def emit_norm(
    b: Builder, kernels: Kernels, found: FoundNorm, values: Mapping[fx.Node, Any]
) -> dict[fx.Node, Value]:
    """Emit a norm by a target's kernel; the values of its nodes, none where there is no kernel.

    Args:
        b: the builder to emit into.
        kernels: of the target.
        found: the norm.
        values: of the nodes before it.
    """
    x = values[found.x]
    narrow = x.widened is not None and x.widened.dtype.is_float
    weight = None if found.weight is None else values[found.weight]
    made = kernels.normalize(b, x.widened if narrow else x, weight, None, found.how)
    if made is None:
        return {}
    y, _, root = made
    if not found.is_reciprocal:
        root = b.divide(b.full(root.shape, 1, root.dtype), root)
    shape = tuple(compat.promise(found.deviation).shape)
    return {found.nodes[-1]: y, found.deviation: b.reshape(root, shape)}


def _norm(deviation: fx.Node) -> FoundNorm | None:
    """The norm that a standard deviation or its reciprocal belongs to, if any."""
    root = _root(deviation)
    if root is None:
        return None
    total, is_reciprocal = root
    sides = _sum_with_number(total)
    mean = None if sides is None else _mean_of_squares(sides[0])
    if sides is None or mean is None:
        return None
    x, count, inside = mean
    value = compat.promise(x)
    if value.dtype != torch.float32 or compat.is_symbolic(value) or value.numel() < _LEAST:
        return None
    operators = ("aten.mul.Tensor",) if is_reciprocal else ("aten.div.Tensor",)
    normal = [user for user in deviation.users if _is_normal(user, operators, x, deviation)]
    if len(normal) != 1:
        return None
    chain, weight, rounding = _behind(normal[0], tuple(value.shape[value.dim() - count :]))
    how = Norm(
        count,
        sides[1],
        is_centered=False,
        dtype=dtypes.from_torch(compat.promise(chain[-1]).dtype),
        rounding=rounding,
    )
    nodes = [*inside, total, deviation, *chain]
    return FoundNorm(x, weight, how, deviation, is_reciprocal, nodes)


def _root(node: fx.Node) -> tuple[fx.Node, bool] | None:
    """What a node is the root of, and whether it is the reciprocal."""
    source = node.args[0]
    is_power = _name(node) == "aten.pow.Tensor_Scalar"
    if not isinstance(source, fx.Node) or (is_power and node.args[1] not in (0.5, -0.5)):
        return None
    if is_power:
        return source, bool(node.args[1] == -0.5)
    return source, _name(node) == "aten.rsqrt.default"


def _sum_with_number(node: fx.Node) -> tuple[fx.Node, float] | None:
    if _name(node) not in ("aten.add.Tensor", "aten.add.Scalar") or not _is_read_once(node):
        return None
    (left, right), factor = node.args[:2], node.kwargs.get("alpha", 1)
    if isinstance(left, fx.Node) and isinstance(right, (int, float)) and factor == 1:
        return left, float(right)
    return None


def _mean_of_squares(node: fx.Node) -> tuple[fx.Node, int, list[fx.Node]] | None:
    """What the mean of squares is of, over how many of the last dimensions, and its nodes."""
    if _name(node) != "aten.mean.dim" or len(node.args) < 3 or not node.args[2] or node.kwargs:
        return None
    squares, dims = node.args[:2]
    if not isinstance(squares, fx.Node) or not isinstance(dims, (list, tuple)):
        return None
    if not _is_read_once(node) or not _is_read_once(squares):
        return None
    x, rank = _root_of_square(squares), compat.promise(squares).dim()
    over = sorted(int(dim) % rank for dim in dims)  # type: ignore[arg-type]
    if x is None or over != list(range(rank - len(over), rank)):
        return None
    return x, len(over), [squares, node]


def _root_of_square(node: fx.Node) -> fx.Node | None:
    """What a node is the square of, if it is one."""
    if _name(node) not in ("aten.pow.Tensor_Scalar", "aten.mul.Tensor"):
        return None
    x, factor = node.args
    is_square = factor is x if _name(node) == "aten.mul.Tensor" else factor == 2
    return x if is_square and isinstance(x, fx.Node) else None


def _is_normal(node: fx.Node, operators: Sequence[str], x: fx.Node, deviation: fx.Node) -> bool:
    """Whether a node multiplies the value by the reciprocal deviation, or divides it by that."""
    if _name(node) not in operators or len(node.args) != 2 or node.kwargs:
        return False
    values = {x, _narrow(x)}
    left, right = node.args
    if left in values and right is deviation:
        return True
    return _name(node) == "aten.mul.Tensor" and left is deviation and right in values


def _narrow(x: fx.Node) -> Any:
    """What a value was widened from; T5 widens it for the sum alone."""
    return x.args[0] if _name(x) == "aten._to_copy.default" else x


def _behind(
    normal: fx.Node, shape: tuple[int, ...]
) -> tuple[list[fx.Node], fx.Node | None, dtypes.DType | None]:
    """The nodes up to the result, the weight, and what is rounded before it is multiplied."""
    chain, weight, rounding = [normal], None, None
    while _is_read_once(chain[-1]):
        last = chain[-1]
        (user,) = last.users
        if _name(user) == "aten._to_copy.default" and _is_rounding(user):
            if weight is None:
                rounding = dtypes.from_torch(compat.promise(user).dtype)
            chain.append(user)
            continue
        factor = _factor(user, last)
        if weight is not None or factor is None or not _is_repeated(factor, shape):
            break
        weight = factor
        chain.append(user)
    return chain, weight, None if weight is None else rounding


def _is_rounding(node: fx.Node) -> bool:
    """Whether a node converts floats to bfloat16, in the order of memory that they have."""
    taken, given = compat.promise(node.all_input_nodes[0]), compat.promise(node)
    return bool(
        taken.dtype == torch.float32
        and given.dtype == torch.bfloat16
        and given.stride() == taken.stride()
    )


def _factor(node: fx.Node, one: fx.Node) -> fx.Node | None:
    """What a product multiplies a value by."""
    if _name(node) != "aten.mul.Tensor":
        return None
    left, right = node.args
    other = right if left is one else left
    return other if isinstance(other, fx.Node) and other is not one else None


def _is_repeated(factor: fx.Node, shape: tuple[int, ...]) -> bool:
    """Whether a factor is a weight, for all but these last dimensions."""
    value = compat.promise(factor)
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.bfloat16):
        return False
    sizes = tuple(value.shape)
    first = len(sizes) - len(shape)
    return sizes[first:] == shape and math.prod(sizes[:first]) == 1 if first >= 0 else False


def _is_read_once(node: fx.Node) -> bool:
    """Whether one operator alone reads a value."""
    users = list(node.users)
    return len(users) == 1 and users[0].op == "call_function"


def _name(node: Any) -> str:
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return ""
    return compat.operator_name(node.target) or ""
