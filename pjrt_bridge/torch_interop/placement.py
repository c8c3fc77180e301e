"""Which nodes of an ATen graph a device can run: those that lower.

There is no list of supported operators. A node is lowered alone, on parameters of the promised
types, into a scratch region; if that works it can go to the device, and if not, the reason is what
the user reads. Nodes that are alike are tried once.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError, UnsupportedDtype
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.builder import Value
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import Lowering, NotLowerable

Lookup = Callable[[str], Lowering | None]
"""Finds the lowering of an operator for one plugin."""

COPY_INTO_INPUT = "aten.copy_.default"
"""The one mutation in a functional graph: an input's new value, at the end of the graph."""


@dataclass(frozen=True)
class Refusal:
    """Why a node cannot run on the device.

    Attributes:
        node: name of the node in the graph.
        operator: what it calls.
        reason: in the user's terms.
        source: the user's line, `file:line: code`, where torch recorded it.
    """

    node: str
    operator: str
    reason: str
    source: str | None

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.operator}: {self.reason}{where}"


class Placement:
    """Decides for the nodes of one graph.

    Args:
        lookup: lowerings for the plugin in question.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._tried: dict[object, str | None] = {}
        self._builder = Builder()

    def refusals(self, graph: fx.Graph) -> list[Refusal]:
        """The nodes that cannot run on the device, in graph order."""
        found = []
        for node in graph.nodes:
            reason = self._reason(node)
            if reason is not None:
                name = compat.operator_name(node.target) or str(node.target)
                found.append(Refusal(node.name, name, reason, source_line(node)))
        return found

    def _reason(self, node: fx.Node) -> str | None:
        try:
            if node.op in ("placeholder", "get_attr"):
                tensor_types(compat.promise(node))
                return None
            if node.op != "call_function" or node.target is operator.getitem:
                return None
            if compat.operator_name(node.target) == COPY_INTO_INPUT:
                return _copy_reason(node)
            outputs = tensor_types(compat.promise(node))
            values = {used: _describe(compat.promise(used)) for used in node.all_input_nodes}
        except (NotLowerable, UnsupportedDtype) as error:
            return str(error)
        contiguous = has_contiguous_inputs(node)
        arguments = compat.substitute((node.args, node.kwargs), values)
        key = (node.target, repr(arguments), outputs, contiguous)
        if key not in self._tried:
            self._tried[key] = self._try(node, arguments, outputs, contiguous)
        return self._tried[key]

    def _try(
        self,
        node: fx.Node,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        outputs: Sequence[TensorType | None],
        contiguous: bool,
    ) -> str | None:
        types = [item for item in _leaves(arguments) if isinstance(item, TensorType)]
        with self._builder.scratch(types) as parameters:
            supply = iter(parameters)
            args, kwargs = _replace(arguments, supply)
            try:
                lower(self._builder, self._lookup, node, args, kwargs, outputs, contiguous)
            except NotLowerable as refusal:
                return refusal.reason
        return None


def lower(
    builder: Builder,
    lookup: Lookup,
    node: fx.Node,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    outputs: Sequence[TensorType | None],
    contiguous_inputs: bool,
) -> Value | tuple[Value | None, ...]:
    """Emit one node; its value, or its values where the operator returns several.

    Raises:
        NotLowerable: there is no lowering, it refused, or it broke torch's promise.
    """
    name = compat.operator_name(node.target)
    if name is None:
        raise NotLowerable(f"{node.target} is no ATen operator")
    lowering = lookup(name)
    if lowering is None:
        raise NotLowerable("no lowering to StableHLO exists for this operator")
    context = Context(builder, outputs, contiguous_inputs=contiguous_inputs)
    try:
        result = lowering(context, *args, **kwargs)
    except NotLowerable:
        raise
    except ProgramError as error:
        raise NotLowerable(f"its lowering emits an invalid operation: {error}") from error
    except Exception as error:
        # A lowering that breaks on an argument it did not expect costs one node, not the model.
        raise NotLowerable(f"its lowering failed: {type(error).__name__}: {error}") from error
    several = isinstance(compat.promise(node), (tuple, list))
    values = tuple(result) if several and isinstance(result, Sequence) else (result,)
    _check_promise(values, outputs)
    return values if several else values[0]  # type: ignore[return-value]


def _check_promise(values: Sequence[Any], outputs: Sequence[TensorType | None]) -> None:
    for index, (value, promised) in enumerate(zip(values, outputs, strict=False)):
        found = value.type if isinstance(value, Value) else value
        if promised is not None and found != promised:
            raise NotLowerable(
                f"its lowering gives {found} for output {index}, torch promises {promised}"
            )
    if len(values) != len(outputs):
        raise NotLowerable(f"its lowering gives {len(values)} outputs, not {len(outputs)}")


def tensor_types(promise: Any) -> tuple[TensorType | None, ...]:
    """Types of a node's outputs; None for what is no tensor.

    Raises:
        NotLowerable: symbolic sizes, or a tensor that is not strided.
        UnsupportedDtype: an element type without a PJRT counterpart.
    """
    several = promise if isinstance(promise, (tuple, list)) else (promise,)
    return tuple(_tensor_type(item) for item in several)


def _tensor_type(promise: Any) -> TensorType | None:
    if compat.is_symbolic(promise):
        raise NotLowerable("its shape is only known in a call")
    if not isinstance(promise, torch.Tensor):
        return None
    if promise.layout is not torch.strided:
        raise NotLowerable(f"a tensor of layout {promise.layout} has no StableHLO type")
    if promise.device.type != "cpu":
        raise NotLowerable(f"a tensor on device {promise.device} cannot be shared with the plugin")
    return TensorType(tuple(promise.shape), dtypes.from_torch(promise.dtype))


def _copy_reason(node: fx.Node) -> str | None:
    target = node.args[0]
    if not isinstance(target, fx.Node) or target.op != "placeholder":
        return "it writes into something that is no input of the graph"
    if any(user.op != "output" for user in node.users):
        return "the result of writing into an input is used again"
    return None


def is_border(node: fx.Node) -> bool:
    """Whether a node is an argument of its graph, or writes into one."""
    return node.op == "placeholder" or compat.operator_name(node.target) == COPY_INTO_INPUT


def has_contiguous_inputs(node: fx.Node) -> bool:
    """Whether every tensor that the node reads is all of its memory, row-major."""
    promises = [compat.promise(used) for used in node.all_input_nodes]
    tensors = [item for item in promises if isinstance(item, torch.Tensor)]
    return all(item.is_contiguous() and item.storage_offset() == 0 for item in tensors)


def _describe(promise: Any) -> Any:
    """A value's stand-in: its type, or itself where it is no tensor."""
    if isinstance(promise, (tuple, list)):
        return tuple(_tensor_type(item) for item in promise)
    return _tensor_type(promise) or promise


def _leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _replace(value: Any, supply: Any) -> Any:
    if isinstance(value, TensorType):
        return next(supply)
    if isinstance(value, dict):
        return {name: _replace(item, supply) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_replace(item, supply) for item in value)
    return value


_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in .+\n\s*(?P<code>.*)')
_TORCH = os.path.dirname(torch.__file__) + os.sep


def source_line(node: fx.Node) -> str | None:
    """The user's line that a node comes from, as `file:line: code`."""
    found = source_frame(node)
    return None if found is None else f"{found[0]}:{found[1]}: {found[2]}"


def source_frame(node: fx.Node) -> tuple[str, int, str] | None:
    """File, line and code that a node comes from: the innermost frame outside of torch."""
    trace = compat.stack_trace(node)
    frames = list(_FRAME.finditer(trace)) if trace else []
    if not frames:
        return None
    own = [frame for frame in frames if not frame["file"].startswith(_TORCH)]
    last = (own or frames)[-1]
    return last["file"], int(last["line"]), last["code"].strip()
