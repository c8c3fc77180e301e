"""Torch's operators on resident tensors: found by their key, run as programs, or by PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import map_aggregate

from pjrt_bridge import user_warnings
from pjrt_bridge.errors import PjrtError, UnsupportedDtype
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.torch_interop.compat import (
    OWN_NAMESPACE,
    OpOverload,
    leave_alone,
    without_autocast,
)
from pjrt_bridge.torch_interop.device.operators.host_calls import (
    CopiesOfStorages,
    elements_once,
    run_on_host,
    write_repeated,
)
from pjrt_bridge.torch_interop.device.programs.call_programs import CallProgram
from pjrt_bridge.torch_interop.device.programs.programs import find_family, new_family
from pjrt_bridge.torch_interop.device.recording.replays import results_of
from pjrt_bridge.torch_interop.passes.defer_assertions import OF_TENSORS
from pjrt_bridge.torch_interop.resident.calls import shortcuts
from pjrt_bridge.torch_interop.resident.calls.calls import (
    AT_POSITIONS,
    Call,
    OtherType,
    argument,
    form_of,
    tensors_in,
)
from pjrt_bridge.torch_interop.resident.calls.changing_sizes import changes
from pjrt_bridge.torch_interop.resident.calls.moving_views import is_part, moves
from pjrt_bridge.torch_interop.resident.calls.other_sizes import Resizes
from pjrt_bridge.torch_interop.resident.calls.overlaps import need_apart
from pjrt_bridge.torch_interop.resident.client import failures
from pjrt_bridge.torch_interop.resident.client.chosen import client, eager_mode
from pjrt_bridge.torch_interop.resident.client.refusals import (
    need_no_overlap,
    need_unpinned,
    repeats_elements,
)
from pjrt_bridge.torch_interop.resident.storages import replacement, transfer
from pjrt_bridge.torch_interop.resident.storages.factories import resize_as
from pjrt_bridge.torch_interop.resident.storages.storage import (
    contents_of,
    is_resident,
    resident_tensor,
)

_ASSERTIONS = frozenset(
    name.removeprefix("aten.") for name in OF_TENSORS if name.startswith("aten.")
)
"""Operators that raise on the host alone, by name: a program of one would call it again."""

_GENERATOR = "a generator was given, which is the host's"


def _call(op: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    # The autocast of this device comes before; programs are kept for callers in any state.
    with without_autocast():
        try:
            return _compute(op, args, kwargs)
        except UnsupportedDtype as error:
            given = list(filter(is_resident, tensors_in((*args, *kwargs.values()))))
            index = given[0].device.index if given else 0
            types = map(transfer.type_of, given)
            raise failures.without_type(error, str(op), types, index or 0) from error


def _compute(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    asked_op, given = op, args
    need_unpinned(kwargs.get("pin_memory"))
    replaced = _REPLACED.get(op.__name__)
    if replaced is not None:
        op, args = replaced(op, args)
    if op.__name__ in _TAKING_BITS and any(map(_has_bits, tensors_in((*args, *kwargs.values())))):
        return _call_on_values(op, args, kwargs)
    if op.__name__.startswith(AT_POSITIONS) and any(map(_is_byte_mask, args[1])):
        return _call_at_masks(op, args, kwargs)
    if op.__name__ in _WRITING_REPEATED and repeats_elements(args[0]):
        return write_repeated(op, args, kwargs)
    try:
        asked = Call(op, args, kwargs)
    except OtherType:
        return _call_on_copies(op, args, kwargs, _has_other_type)
    if op.namespace == OWN_NAMESPACE or op.__name__ in _ASSERTIONS:
        # What is checked when a program is over, and raises.
        return run_on_host(op, args, kwargs, asked.index, None)
    if kwargs.get("generator") is not None:
        return run_on_host(op, args, kwargs, asked.index, _GENERATOR)
    client()
    family = find_family(asked)
    if family is None:
        _need_memory_apart(op, args, kwargs)
        if any(map(is_part, tensors_in((args, *kwargs.values())))) and moves(asked):
            moving = Call(op, args, kwargs, moves=True)
            family = find_family(moving) or new_family(moving)
            if family.find(moving) is not None:
                asked = moving
            elif eager_mode() != "fused":
                return _call_on_copies(op, args, kwargs, is_part)
        if not asked.moves and changes(asked):
            return run_on_host(op, args, kwargs, asked.index, None, CopiesOfStorages())
        if family is None or not asked.moves:
            family = new_family(asked)
    program = family.find(asked)
    if isinstance(program, Resizes):
        for tensor, wanted in zip(_written(op, args, kwargs), program.forms, strict=True):
            _warn_of_other_size(tensor, wanted[0])
            resize_as(tensor, *wanted)
        return call(op, *args, **kwargs)
    if program is None:
        return run_on_host(op, args, kwargs, asked.index, family.reason)
    if program.has_run and not asked.moves and _has_shortcut(asked, program):
        shortcuts.tell_numbers(asked_op, form_of(op).numbers)
        call.learn((asked_op, *given), kwargs, program.shortcut, program.lifted)
    try:
        outputs = program.run(asked.given, asked.numbers)
    except PjrtError as error:
        types = map(transfer.type_of, asked.given)
        raise failures.told(error, str(op), types, asked.index) from error.__cause__
    return results_of(form_of(op).returns, program.layout, outputs, given, kwargs)


leave_alone(_call)
call = shortcuts.entrance(_call)
"""Any operator that has no kernel of its own on the device, and its arguments.

Raises:
    DeviceError: tensors on several devices.
    Exception: what the operator raises for such arguments.
"""


def _has_bits(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def _call_on_values(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call an operator on tensors whose memory holds their values."""
    plain: dict[int, torch.Tensor] = {}

    def resolved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not _has_bits(value):
            return value
        if id(value) not in plain:
            plain[id(value)] = value.resolve_conj().resolve_neg()
        return plain[id(value)]

    found = call(
        op, *map(resolved, args), **{name: resolved(value) for name, value in kwargs.items()}
    )
    for tensor in _written(op, args, kwargs):
        if id(tensor) in plain:
            found = tensor.copy_(plain[id(tensor)])
    return found


def _is_byte_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.uint8


def _call_at_masks(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call an operator of positions with masks for those of `torch.uint8`, which are deprecated.

    PyTorch warns in each call; programs run without its kernels.
    """
    places = []
    for place in args[1]:
        if _is_byte_mask(place):
            user_warnings.warn(_DEPRECATED_MASK, UserWarning)
            place = place != 0
        places.append(place)
    return call(op, args[0], places, *args[2:], **kwargs)


_DEPRECATED_MASK = (
    "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."
)
"""What PyTorch says (`expandTensors` in ATen/native/IndexingUtils.h)."""


def _warn_of_other_size(tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Say that a result has other sizes, as PyTorch does (`resize_output`, ATen/native)."""
    if tensor.numel() and tuple(tensor.shape) != shape:
        user_warnings.warn(
            f"An output with one or more elements was resized since it had shape "
            f"{list(tensor.shape)}, which does not match the required output shape {list(shape)}. "
            "PyTorch deprecates this: give a tensor that has this shape, or none, t.resize_(0)",
            UserWarning,
        )


def _has_other_type(value: Any) -> bool:
    """Whether a storage holds elements of another type than a tensor has."""
    return is_resident(value) and contents_of(value).dtype is not value.dtype


def _call_on_copies(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    is_chosen: Callable[[Any], bool],
) -> Any:
    """Call an operator on copies of some tensors, and write what it wrote into these."""
    _need_memory_apart(op, args, kwargs)
    copies: dict[int, torch.Tensor] = {}

    def copied(value: Any) -> Any:
        if not is_chosen(value):
            return value
        if id(value) not in copies:
            spec = ValueSpec.argument(transfer.type_of(value), value.stride())
            buffer = transfer.buffer_as(value, spec)
            copies[id(value)] = resident_tensor(buffer, spec, value.device.index or 0)
        return copies[id(value)]

    form = form_of(op)
    positional, named = map_aggregate((args, dict(kwargs)), copied)
    found = call(op, *positional, **named)
    for tensor in _written(op, args, kwargs):
        copy = copies.get(id(tensor))
        if copy is not None:
            resize_as(tensor, tuple(copy.shape), copy.stride())
            spec = ValueSpec.row_major(transfer.type_of(copy))
            replacement.replace_elements(tensor, transfer.buffer_as(copy, spec), spec)
    if not form.returns:
        return None
    results = tuple(
        item if place is None else argument(place, args, kwargs)
        for place, item in zip(
            form.returns, found if len(form.returns) > 1 else (found,), strict=True
        )
    )
    return results if len(results) > 1 else results[0]


def _has_shortcut(asked: Call, program: CallProgram) -> bool:
    # The compiled module hands on the numbers that are arguments, and none in lists.
    listed = asked.has_lists and program.lifted
    return program.shortcut is not None and not listed and not _is_read_by_bits(asked)


def _is_read_by_bits(asked: Call) -> bool:
    """Whether such a call may come with conj and neg bits, which the compiled module ignores."""
    return asked.op.__name__ in _TAKING_BITS and any(
        item.dtype.is_complex or asked.op.__name__.startswith("linalg") for item in asked.given
    )


def _need_memory_apart(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    written = _written(op, args, kwargs)
    for tensor in written:
        need_no_overlap(tensor)
    need_apart(op, written, args, kwargs)


def _written(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    places = form_of(op).written
    return [item for place in places for item in tensors_in(argument(place, args, kwargs))]


def _fill(op: OpOverload, args: tuple[Any, ...]) -> tuple[OpOverload, tuple[Any, ...]]:
    """With each element in memory once: filling takes what overlaps itself."""
    tensor, *rest = args
    return op, (elements_once(tensor), *rest)


def _index_put(_: OpOverload, args: tuple[Any, ...]) -> tuple[OpOverload, tuple[Any, ...]]:
    """The operator of which it is the kernel."""
    return torch.ops.aten.index_put_.default, args[:4]


def _batch_norm(_: OpOverload, args: tuple[Any, ...]) -> tuple[OpOverload, tuple[Any, ...]]:
    """The operator that says that it writes into its running statistics, where there are any."""
    input, weight, bias, mean, variance, *rest = args
    packet = torch.ops.aten._native_batch_norm_legit
    if mean is None and variance is None:
        return packet.no_stats, (input, weight, bias, *rest)
    return packet.default, args


_REPLACED: dict[str, Callable[[OpOverload, Any], tuple[OpOverload, tuple[Any, ...]]]] = {
    "fill_.Scalar": _fill,
    "fill_.Tensor": _fill,
    "zero_.default": _fill,
    "native_batch_norm.default": _batch_norm,
    "_index_put_impl_.default": _index_put,
}
"""Operators that other operators stand for, by name: these and their arguments."""

_WRITING_REPEATED = frozenset(
    (
        "fill_diagonal_.default",
        "index_fill_.int_Scalar",
        "index_fill_.int_Tensor",
        "index_put_.default",
        "masked_fill_.Scalar",
        "masked_fill_.Tensor",
    )
)
"""Operators that PyTorch lets write into a tensor that repeats elements, which it deprecates."""

_TAKING_BITS = frozenset(
    f"{name}.{overload}"
    for name in (
        *("addmm", "addmm_", "baddbmm", "baddbmm_", "bmm", "dot", "mm", "vdot"),
        "linalg_solve_triangular",
    )
    for overload in ("default", "out")
)
"""Operators that torch hands conjugated and negated tensors as they lie in memory: its own kernels
look at the bits (ATen/ConjugateFallback.cpp, ATen/native/NegateFallback.cpp)."""
