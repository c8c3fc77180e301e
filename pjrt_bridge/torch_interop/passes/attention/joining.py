"""Torch's operators of attention, in place of what a graph has of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.attention.elements import (
    ahead,
    are_alike,
    behind,
    has_shape,
    has_shape_at_end,
    shape,
    turned,
)
from pjrt_bridge.torch_interop.passes.attention.gradients import WrittenGradients, gradients_of
from pjrt_bridge.torch_interop.passes.attention.masks import AddedMask, mask_of
from pjrt_bridge.torch_interop.passes.attention.scores import Written, attention_ending_with

FORWARD = "aten._scaled_dot_product_flash_attention_for_cpu.default"
BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"

_REPLACED = ("aten.bmm.default", "aten.mm.default", "aten._softmax.default", FORWARD)


def join_attention(graph: fx.Graph, kernels: Kernels, keeps: Callable[[str], bool]) -> None:
    """Write torch's operators for attention of which nothing else is read, in place.

    Args:
        graph: functional; of a step forward and backward, or one without gradients.
        kernels: of the target.
        keeps: says of an operator's name that it stays as it is.
    """
    if type(kernels).attends is Kernels.attends or any(map(keeps, _REPLACED)):
        return
    for node in list(graph.nodes):
        written = attention_ending_with(node)
        if written is None:
            continue
        gradients = gradients_of(written)
        is_taken = _is_taken(kernels, written, trains=gradients is not None)
        if not is_taken or _is_read(written, gradients):
            continue
        before = set(graph.nodes)
        replaced = {written.first, *written.nodes}
        try:
            replaced |= _Joining(graph, written, gradients).write()
        except _NoOperator:
            replaced = set()
        _erase(graph, replaced | (set(graph.nodes) - before))


class _NoOperator(Exception):
    """Torch's operators cannot say what the graph has."""


def _is_taken(kernels: Kernels, written: Written, *, trains: bool) -> bool:
    weights = compat.promise(written.weights)
    *batches, queries, keys = (compat.hint(size) for size in weights.shape)
    if not all(isinstance(size, int) for size in (*batches, queries, keys)):
        # A size that depends on data.
        return False
    dtype = dtypes.from_torch(compat.promise(written.query).dtype)
    return kernels.attends(dtype, math.prod(batches), queries, keys, trains=trains)


def _is_read(written: Written, gradients: WrittenGradients | None) -> bool:
    """Whether anything else reads what is computed on the way."""
    inner, own = {written.first, *written.nodes}, {written.last}
    if gradients is not None:
        results = {node for node in gradients.results if node is not None}
        inner |= gradients.nodes - results
        own |= results
    return any(not node.users.keys() <= inner | own for node in inner)


def _erase(graph: fx.Graph, nodes: set[fx.Node]) -> None:
    for node in reversed(list(graph.nodes)):
        if node in nodes and not node.users:
            graph.erase_node(node)


class _Joining:
    """One attention that is written anew: scores are (batch, heads, queries, keys)."""

    def __init__(
        self, graph: fx.Graph, written: Written, gradients: WrittenGradients | None
    ) -> None:
        self._graph = graph
        self._written = written
        self._gradients = gradients
        self._batch, self._heads = _batch_and_heads(written)
        self._queries, self._keys = shape(written.weights)[-2:]
        self._size = shape(written.query)[-1]
        self._replaced: set[fx.Node] = set() if gradients is None else {*gradients.nodes}
        self._numbers: dict[Any, fx.Node] = {}
        for node in graph.nodes:
            if node is written.last:
                break
            if isinstance(compat.promise(node), torch.SymInt):
                self._numbers.setdefault(compat.expression(compat.promise(node)), node)

    def write(self) -> set[fx.Node]:
        """Insert the operators, and have their results read; gives the nodes that were before."""
        written, mask = self._written, None
        with self._graph.inserting_before(written.last):
            if written.masks:
                mask = mask_of(self._graph, written)
                if mask is None or (self._gradients is not None and not mask.has_gradients):
                    raise _NoOperator
            sides = [self._of_queries(written.query), self._key(), self._of_keys(written.value)]
            given: dict[str, Any] = {} if mask is None else {"attn_mask": mask.added}
            given["scale"] = written.scale
            call = compat.insert_call(self._graph, FORWARD, *sides, 0.0, False, **given)
            output, sums = (self._item(call, at) for at in (0, 1))
            empty = None if mask is None else mask.empty
            result = output if empty is None else self._replaced_where(empty, math.nan, output)
        if self._gradients is not None:
            self._write_gradients(self._gradients, mask, sides, [output, sums], given)
        with self._graph.inserting_before(written.last):
            self._replace(written.last, result, self._queries)
        return self._replaced

    def _write_gradients(
        self,
        found: WrittenGradients,
        mask: AddedMask | None,
        sides: list[fx.Node],
        results: list[fx.Node],
        given: dict[str, Any],
    ) -> None:
        graph = self._graph
        first = next(node for node in graph.nodes if node in (found.slope, found.of_value))
        with graph.inserting_before(first):
            grad_output = self._of_queries(found.grad_output)
            if mask is not None and mask.even is not None:
                sides, results, given = self._without_even(mask, sides, results, given)
            arguments = (grad_output, *sides, *results, 0.0, False)
            call = compat.insert_call(graph, BACKWARD, *arguments, **given)
            query, key, value = (self._item(call, at) for at in range(3))
            if mask is not None and mask.even is not None:
                query = self._replaced_where(mask.even, 0.0, query)
            if found.scale != 1.0:
                query, key = (self._call("mul.Tensor", x, 1 / found.scale) for x in (query, key))
            if mask is not None and mask.empty is not None:
                any_row = self._call("any.dim", mask.empty, 2, True)
                value = self._replaced_where(any_row, math.nan, value)
            if found.of_query is not None:
                self._replace(found.of_query, query, self._queries)
            if found.of_value is not None:
                self._replace(found.of_value, value, self._keys)
            if found.of_turned_key is not None:
                # The product has memory of its own, and what is returned may be a view of that.
                key = self._dense(self._call("permute.default", key, _TURN))
                self._replace(found.of_turned_key, key, self._size, self._keys)

    def _without_even(
        self, mask: AddedMask, sides: list[fx.Node], results: list[fx.Node], given: dict[str, Any]
    ) -> tuple[list[fx.Node], list[fx.Node], dict[str, Any]]:
        """Operands of the gradients where queries with even weights are zeros, and see all keys."""
        if mask.even is None or not isinstance(self._keys, int):
            raise _NoOperator
        query, *others = sides
        output, sums = results
        rows = self._call("squeeze.dims", mask.even, [3])
        sums = self._replaced_where(rows, math.log(self._keys), sums)
        query, added = (self._replaced_where(mask.even, 0.0, x) for x in (query, mask.added))
        return [query, *others], [output, sums], {**given, "attn_mask": added}

    # -- operands ----------------------------------------------------------------------------------

    def _of_queries(self, node: fx.Node) -> fx.Node:
        return self._with_heads(node, self._queries, self._size)

    def _of_keys(self, node: fx.Node) -> fx.Node:
        return self._with_heads(node, self._keys, self._size)

    def _key(self) -> fx.Node:
        written = self._written
        inner = turned(written.turned_key)
        if inner is not None:
            return self._of_keys(inner)
        found = self._with_heads(written.turned_key, self._size, self._keys)
        inner = turned(found)
        return self._call("permute.default", found, _TURN) if inner is None else inner

    def _with_heads(self, node: fx.Node, rows: Any, columns: Any) -> fx.Node:
        """The elements of a node as (batches, heads, rows, columns), as they lay at first."""
        sizes = (self._batch, self._heads, rows, columns)
        dtype = compat.promise(node).dtype
        for item in reversed(behind(node).same):
            if compat.promise(item).dtype != dtype:
                continue
            if has_shape(item, sizes):
                return item
            if are_alike(shape(item), sizes):
                return self._without_ones(item, sizes)
        return self._view(node, sizes)

    def _without_ones(self, node: fx.Node, sizes: Sequence[Any]) -> fx.Node:
        """A node in a shape that differs from its own in dimensions of one element alone."""
        ones, wanted = (
            [dim for dim, size in enumerate(found) if compat.is_same_size(size, 1)]
            for found in (shape(node), sizes)
        )
        node = self._call("squeeze.dims", node, ones)
        for dim in wanted:
            node = self._call("unsqueeze.default", node, dim)
        return node

    def _view(self, node: fx.Node, sizes: Sequence[Any]) -> fx.Node:
        return self._call("view.default", node, [self._number(size) for size in sizes])

    def _number(self, size: Any) -> Any:
        """A size as an argument: a number, or the node that has it."""
        if isinstance(size, int):
            return size
        found = self._numbers.get(size)
        if found is None:
            raise _NoOperator
        return found

    # -- results -----------------------------------------------------------------------------------

    def _replace(self, old: fx.Node, new: fx.Node, rows: Any, columns: Any = None) -> None:
        """Have a result read in place of a product, where possible before that loses its heads."""
        columns = self._size if columns is None else columns
        sizes = (self._batch, self._heads, rows, columns)
        dtype = compat.promise(old).dtype
        found = ahead(old)
        self._replaced |= {*found.nodes}
        for node in reversed(found.same):
            if compat.promise(node).dtype == dtype and has_shape(node, sizes):
                old = node
                if any(user.op == "output" for user in old.users):
                    # A product is row-major. The promise below is not enough: it is worked out
                    # anew where sizes become known.
                    new = self._dense(new)
                break
        else:
            new = self._view(self._dense(new), shape(old))
        # Strides are those that are promised of results.
        new.meta = {**old.meta, "val": compat.promise(old)}
        old.replace_all_uses_with(new)

    def _item(self, call: fx.Node, at: int) -> fx.Node:
        item = self._graph.call_function(operator.getitem, (call, at))
        item.meta["val"] = compat.promise(call)[at]
        return item

    def _dense(self, x: fx.Node) -> fx.Node:
        return self._call("clone.default", x, memory_format=torch.contiguous_format)

    def _replaced_where(self, condition: fx.Node, number: float, x: fx.Node) -> fx.Node:
        like = compat.promise(x)
        filled = self._call("full.default", [], number, dtype=like.dtype, device=like.device)
        return self._call("where.self", condition, filled, x)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> fx.Node:
        return compat.insert_call(self._graph, f"aten.{name}", *args, **kwargs)


_TURN = [0, 1, 3, 2]


def _batch_and_heads(written: Written) -> tuple[Any, Any]:
    """Sizes of batches and heads; one head where products are of so many batches alone."""
    rows = shape(written.weights)[-2:]
    masked = [step.node for step in written.masks]
    sizes = next((shape(node) for node in masked), None)
    if sizes is None:
        ends = (*((node, rows) for node in written.nodes), *_queries(written))
        found = (node for node, end in ends if has_shape_at_end(node, end))
        sizes = next((shape(node) for node in found if len(shape(node)) == 4), None)
    elif len(sizes) > 4 or not all(has_shape(node, sizes) for node in masked):
        raise _NoOperator
    batches = (sizes or shape(written.weights))[:-2]
    return tuple([*batches, 1, 1][:2])


def _queries(written: Written) -> list[tuple[fx.Node, tuple[Any, ...]]]:
    end = shape(written.query)[-2:]
    return [(node, end) for node in behind(written.query).same]
