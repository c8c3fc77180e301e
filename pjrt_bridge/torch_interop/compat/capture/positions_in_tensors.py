"""Tensors that are indexed by whole numbers which are data of other tensors: `x[x.argmax()]`.

PyTorch takes the number out of a 0-d tensor and selects a view. Dynamo ends the graph there, and in
a loop compiles nothing. While it traces for this backend, the elements are gathered. That is a
copy: where a graph shows the difference, because it returns what was read, or writes to one of the
two, its code is traced once more as Dynamo does it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo import config, exc
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lists import SliceVariable, TupleVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable

from pjrt_bridge.torch_interop.compat.capture.kept_numbers import is_kept

_aten = torch.ops.aten

_share_memory = torch._C._is_alias_of  # type: ignore[attr-defined]

_WHOLE = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))
"""Types of positions; tensors of others are masks."""

# -- what is traced --------------------------------------------------------------------------------


def _located(x: torch.Tensor, key: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """A view of what the other indices select, and an index or None for its first dimensions."""
    keys = key if isinstance(key, tuple) else (key,)
    others = [slice(None) if isinstance(item, torch.Tensor) else item for item in keys]
    taken = sum(not (item is None or item is Ellipsis) for item in others)
    indices: list[torch.Tensor | None] = []
    for item in keys:
        if item is Ellipsis:
            indices += [None] * (x.dim() - taken)
        elif isinstance(item, torch.Tensor):
            indices.append(item.to(torch.int64))
        elif not isinstance(item, int):
            indices.append(None)
    return x[tuple(others)], indices


def read(x: torch.Tensor, key: Any) -> torch.Tensor:
    """A copy of `x[key]`."""
    rows, indices = _located(x, key)
    found: torch.Tensor = _aten.index(rows, indices)
    return found


def write(x: torch.Tensor, key: Any, value: Any) -> None:
    """`x[key] = value`."""
    rows, indices = _located(x, key)
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    _aten.index_put_(rows, indices, value.to(x.dtype))


# -- where it is traced ----------------------------------------------------------------------------


@dataclass
class _Read:
    """What was read of a tensor, both as they are while Dynamo traces.

    Attributes:
        versions: how often each had been written.
        uses: how many nodes the graph had before something else was written to the tensor.
    """

    source: torch.Tensor
    made: torch.Tensor
    versions: tuple[int, int]
    uses: int | None = None

    def is_written(self) -> bool:
        return (self.source._version, self.made._version) != self.versions

    def is_shown(self, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> bool:
        """Whether a graph shows that it is a copy."""
        if self.is_written() or any(map(self._is_part, outputs)):
            return True
        later = nodes[len(nodes) if self.uses is None else self.uses :]
        return any(self._is_part(used) for node in later for used in node.all_input_nodes)

    def _is_part(self, node: fx.Node) -> bool:
        value = node.meta.get("example_value")
        return isinstance(value, torch.Tensor) and _share_memory(self.made, value)


_READS = "_pjrt_reads"
_REFUSED = "_pjrt_refuses_reads"


def trace_positions_in_tensors(is_for_us: Callable[[Any], bool]) -> None:
    """Have Dynamo trace reads and writes at positions that are data.

    Args:
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    get, put = BuiltinVariable._handle_insert_op_in_graph, TensorVariable.method___setitem__
    finish = OutputGraph.compile_and_call_fx_graph

    def _handle_insert_op_in_graph(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn is operator.getitem and is_for_us(tx) and _is_gathered(tx, *args):
            return _read(tx, *(item.realize() for item in args))
        return get(self, tx, args, kwargs)

    def method___setitem__(self: Any, tx: Any, key: Any, value: Any) -> Any:
        if is_for_us(tx) and _has_positions(tx, self, key) and _fits(self, key, value.realize()):
            return _write(tx, self, key, value)
        return put(self, tx, key, value)

    def compile_and_call_fx_graph(self: Any, tx: Any, rv: Any, root: Any) -> Any:
        if _shows_copies(self.graph, getattr(self, _READS, ()), rv):
            log = self.root_tx.speculation_log
            # What is traced next differs from what the log says.
            log.clear()
            setattr(log, _REFUSED, True)
            raise exc.RestartAnalysis(restart_reason="elements are read as a view, not a copy")
        return finish(self, tx, rv, root)

    BuiltinVariable._handle_insert_op_in_graph = (  # type: ignore[method-assign]
        _handle_insert_op_in_graph
    )
    TensorVariable.method___setitem__ = method___setitem__  # type: ignore[method-assign]
    OutputGraph.compile_and_call_fx_graph = (  # type: ignore[method-assign]
        compile_and_call_fx_graph
    )


def _inlined(tx: Any, function: Callable[..., Any], args: Sequence[Any]) -> Any:
    return tx.inline_user_function_return(VariableTracker.build(tx, function), args, {})


def _has_positions(tx: Any, x: Any, key: Any) -> bool:
    """Whether a tensor is indexed by numbers that are data, with nothing but numbers and slices."""
    x, key = x.realize(), key.realize()
    if type(x) is not TensorVariable or config.capture_scalar_outputs:
        return False
    items = [item.realize() for item in key.items] if isinstance(key, TupleVariable) else [key]
    positions = [item for item in items if isinstance(item, TensorVariable)]
    return (
        bool(positions)
        and _value(x).layout == torch.strided
        and all(_is_position(tx, item) for item in positions)
        and all(isinstance(item, TensorVariable) or _is_plain(item) for item in items)
    )


def _value(tensor: Any) -> torch.Tensor:
    """A tensor as it is while Dynamo traces."""
    value: torch.Tensor = tensor.as_proxy().node.meta["example_value"]
    return value


def _is_position(tx: Any, item: Any) -> bool:
    """Whether an index is a whole number that only a call knows."""
    if type(item) is not TensorVariable or is_kept(tx, item):
        return False
    value = _value(item)
    return value.dim() == 0 and value.dtype in _WHOLE and getattr(value, "constant", None) is None


def _is_plain(item: Any) -> bool:
    """Whether an index is a number, a slice, None or an ellipsis."""
    if isinstance(item, ConstantVariable):
        number = item.as_python_constant()
        return number is None or number is Ellipsis or type(number) is int
    return isinstance(item, (SliceVariable, SymNodeVariable)) and item.python_type() is not bool


def _is_gathered(tx: Any, x: Any, key: Any) -> bool:
    """Whether a copy may be read: other uses of it decide when the graph is complete."""
    if not _has_positions(tx, x, key) or not tx.output.is_root_tracer():
        return False
    value = _value(x.realize())
    return (
        not getattr(tx.output.root_tx.speculation_log, _REFUSED, False)
        and not value.is_inference()
        # Elsewhere, strides of what is calculated from a copy would be other ones.
        and value.is_contiguous()
    )


def _read(tx: Any, x: Any, key: Any) -> Any:
    made = _inlined(tx, read, (x, key))
    source, copied = _value(x), _value(made)
    reads = getattr(tx.output, _READS, [])
    reads.append(_Read(source, copied, (source._version, copied._version)))
    setattr(tx.output, _READS, reads)
    return made


def _write(tx: Any, x: Any, key: Any, value: Any) -> Any:
    reads = getattr(tx.output, _READS, ())
    before = [item for item in reads if not item.is_written()]
    written = _inlined(tx, write, (x, key, value))
    for item in before:
        if item.is_written() and not _share_memory(item.made, _value(x)):
            item.versions = item.source._version, item.made._version
            item.uses = len(tx.output.graph.nodes) if item.uses is None else item.uses
    return written


def _fits(x: Any, key: Any, value: Any) -> bool:
    """Whether a number is written, or a tensor that has no more dimensions than its place."""
    if isinstance(value, ConstantVariable):
        return type(value.as_python_constant()) in (bool, int, float)
    if type(value) is not TensorVariable or _value(value).device != _value(x).device:
        return False
    key = key.realize()
    items = [item.realize() for item in key.items] if isinstance(key, TupleVariable) else [key]
    numbers = sum(not isinstance(item, (SliceVariable, ConstantVariable)) for item in items)
    constants = [item.as_python_constant() for item in items if isinstance(item, ConstantVariable)]
    numbers += sum(type(item) is int for item in constants) - constants.count(None)
    return _value(value).dim() <= _value(x).dim() - numbers


def _shows_copies(graph: fx.Graph, reads: Sequence[_Read], outputs: Sequence[Any]) -> bool:
    """Whether a graph shows that what it read are copies."""
    if not reads:
        return False
    nodes, given = list(graph.nodes), [output.as_proxy().node for output in outputs]
    hides_writes = any(node.target is _DATA_OF for node in nodes)
    return hides_writes or any(item.is_shown(nodes, given) for item in reads)


_DATA_OF = torch._C._autograd._get_data_attr  # type: ignore[attr-defined]
"""`x.data`, whose writes are not counted."""
