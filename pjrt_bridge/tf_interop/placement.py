"""Which operations the device can run and should, and why not the others.

TensorFlow's XLA compiler has kernels for about 490 operations, each with constraints on types. Of
these some are refused here: their results have sizes that depend on data, or they do something
that compiled code would leave out. Of what can be compiled, TensorFlow keeps what packages have
measured it to be faster at (`pjrt_bridge_slower`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.report.fallback_reason import FallbackReason, ReasonKind
from pjrt_bridge.tf_interop import compat, randomness
from pjrt_bridge.tf_interop.capture import CapturedFunction, FlatOperation
from pjrt_bridge.tf_interop.dtypes import crosses

_SIZES = "the size of its result depends on data"
_RANDOM = "it draws from a random state of TensorFlow's own; stateless operations can be compiled"
_CHECKS = "what it checks would not be checked in compiled code"

GATHERED_FROM_NOTHING = "XLA gives it another shape where the dimension has no elements"

_REFUSED: Mapping[str, tuple[str, ReasonKind]] = {
    **dict.fromkeys(
        (
            "DynamicPartition",
            "ListDiff",
            "NonMaxSuppressionV3",
            "NonMaxSuppressionV4",
            "Unique",
            "UniqueV2",
            "Where",
        ),
        (_SIZES, "data"),
    ),
    **dict.fromkeys(
        (
            "Multinomial",
            "ParameterizedTruncatedNormal",
            "RandomShuffle",
            "RandomStandardNormal",
            "RandomUniform",
            "RandomUniformInt",
            "TruncatedNormal",
        ),
        (_RANDOM, "refused"),
    ),
    **dict.fromkeys(("Assert", "CheckNumerics", "CheckNumericsV2"), (_CHECKS, "refused")),
}

_ENDLESS = (
    "a list without a largest size; give the loop that fills it one, with "
    "tf.autograph.experimental.set_loop_options(maximum_iterations=...)"
)
_ELSEWHERE = ("Collective", "InfeedEnqueue", "OutfeedDequeue", "XlaHost", "XlaRecv", "XlaSend")
"""How names of operations begin that talk to other devices or to the host."""


class Placement:
    """Decides which operations of one function run on the device.

    Args:
        captured: the function.
        failed: why operations stay on the host after trial exports found, by name of the operation.
        slower: by type of an operation, as `tf.Cumsum`, the number of elements of its largest
            tensor from which on TensorFlow is faster.
    """

    def __init__(
        self,
        captured: CapturedFunction,
        failed: Mapping[str, FallbackReason],
        slower: Mapping[str, int] | None = None,
    ) -> None:
        self._captured = captured
        self._failed = failed
        self._slower = slower or {}
        self._kernels = compat.xla_kernels()

    def fallback_reasons(self) -> dict[int, FallbackReason]:
        """For each operation that has to run on the host, by index, the reason."""
        found: dict[int, FallbackReason] = {}
        for index, operation in enumerate(self._captured.operations):
            reason = self._failed.get(operation.name) or self._fallback_reason(operation)
            if reason is not None:
                found[index] = reason
        return found

    def _fallback_reason(self, operation: FlatOperation) -> FallbackReason | None:
        reason = (
            _refusal(operation.made, self._kernels)
            or _type_refusal(operation.made)
            or self._border(operation)
            or _slow(operation.made, self._slower)
        )
        if reason is None:
            return None
        text, kind = reason
        return FallbackReason(
            operation.type, f"{text} (node {operation.name})", kind, operation.source
        )

    def _border(self, operation: FlatOperation) -> tuple[str, ReasonKind] | None:
        """Why a resource that it uses cannot be an argument of a program."""
        for value in operation.inputs:
            tensor = self._captured.values[value]
            if tensor.dtype != tf.resource:
                continue
            held = self._captured.captures.get(value)
            if held is None:
                return "its resource is no variable that the function holds", "refused"
            shapes = compat.handle_shapes(held)
            if not shapes:
                return "its resource is no variable", "unsupported"
            _, dtype = shapes[0]
            if not crosses(dtype):
                return f"a variable of type {dtype.name} has no counterpart on a device", "refused"
            if "CPU:0" not in held.device:
                return f"its variable is on {held.device}", "refused"
        return None


def _refusal(
    made: Any, kernels: Mapping[str, Any], inside: Collection[str] = ()
) -> tuple[str, ReasonKind] | None:
    """Why XLA cannot compile an operation, or should not."""
    if made.type in _REFUSED:
        return _REFUSED[made.type]
    if made.type.startswith(_ELSEWHERE):
        return "it communicates with other devices or with the host", "refused"
    missing = None if compat.callee(made) is not None else _missing_kernel(made, kernels)
    if missing is not None:
        return missing
    if made.type == "EmptyTensorList":
        most = compat.constant_value(made.inputs[1])
        if most is not None and most < 0:
            return _ENDLESS, "refused"
    if made.type == "TensorListSetItem" and made.get_attr("resize_if_index_out_of_bounds"):
        return "its list grows, which XLA would not do", "refused"
    if gathers_from_nothing(made):
        return GATHERED_FROM_NOTHING, "refused"
    drawn = randomness.refusal(made)
    if drawn is not None:
        return drawn, "refused"
    if inside and randomness.is_rewritten(made):
        return "in a loop or a branch XLA draws other numbers than TensorFlow", "refused"
    for name in compat.functions_of(made):
        if name not in inside:
            reason = _inner_refusal(made, name, kernels, (*inside, name))
            if reason is not None:
                return reason
    return None


def _missing_kernel(made: Any, kernels: Mapping[str, Any]) -> tuple[str, ReasonKind] | None:
    if made.type not in kernels:
        return "XLA has no kernel for it", "unsupported"
    if not any(_fits(made, kernel) for kernel in kernels[made.type]):
        types = ", ".join(
            sorted({tensor.dtype.base_dtype.name for tensor in (*made.inputs, *made.outputs)})
        )
        return f"XLA has no kernel of it for {types}", "refused"
    return None


def gathers_from_nothing(made: Any, unknown: bool = False) -> bool:
    """Whether an operation gathers along a dimension without elements.

    Args:
        made: the operation.
        unknown: what is said where the size is not known.
    """
    if made.type not in ("Gather", "GatherV2") or made.inputs[1].shape.num_elements() == 0:
        return False
    shape = made.inputs[0].shape
    axis = compat.constant_value(made.inputs[2]) if made.type == "GatherV2" else 0
    if shape.rank is None:
        return unknown
    sizes = shape.as_list() if axis is None else [shape.as_list()[int(axis)]]
    return 0 in sizes or (unknown and None in sizes)


def _inner_refusal(
    made: Any, name: str, kernels: Mapping[str, Any], inside: Collection[str]
) -> tuple[str, ReasonKind] | None:
    try:
        operations = compat.called(made.graph, name).get_operations()
    except NotExportable as error:
        return f"in it {error}", "refused"
    for inner in operations:
        if inner.type in ("Placeholder", "NoOp", "_Arg", "_Retval"):
            continue
        reason = _refusal(inner, kernels, inside)
        if reason is not None:
            return f"in it is {inner.type} {inner.name!r}: {reason[0]}", reason[1]
    return None


def _type_refusal(made: Any) -> tuple[str, ReasonKind] | None:
    """Why its tensors cannot be on a device."""
    for tensor in (*made.inputs, *made.outputs):
        dtype = tensor.dtype.base_dtype
        if not (crosses(dtype) or dtype in (tf.resource, tf.variant)):
            return f"tensors of type {dtype.name} stay on the host", "unsupported"
    return None


def _slow(made: Any, slower: Mapping[str, int]) -> tuple[str, ReasonKind] | None:
    """Whether TensorFlow is faster, as far as sizes are known before a call."""
    least = slower.get(f"tf.{made.type}")
    if least is None:
        return None
    sizes = [tensor.shape.num_elements() or 0 for tensor in (*made.inputs, *made.outputs)]
    if max(sizes, default=0) < least:
        return None
    return f"TensorFlow was measured to be faster from {least:,} elements on", "slow"


def _fits(made: Any, kernel: Mapping[str, frozenset[int]]) -> bool:
    """Whether the types of an operation are among those of a kernel."""
    for name, allowed in kernel.items():
        value = made.node_def.attr[name]
        types = list(value.list.type) or [value.type]
        if allowed and not allowed.issuperset(types):
            return False
    return True
