"""Calls of operators on resident tensors, traced on tensors without memory into functional graphs.

What a call writes into a storage is a new array for that storage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pjrt_bridge.mixed.records import GraphRecord
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat.devices import third_party_device
from pjrt_bridge.torch_interop.compat.devices.sparse_tensors import is_sparse
from pjrt_bridge.torch_interop.compat.promises.symbolic_numbers import SymbolicNumbers
from pjrt_bridge.torch_interop.compiler import Compiler
from pjrt_bridge.torch_interop.device.programs.call_programs import CallProgram
from pjrt_bridge.torch_interop.device.programs.drawing import drawing_step, takes_numbers
from pjrt_bridge.torch_interop.ledger import EAGER
from pjrt_bridge.torch_interop.nodes import is_mutation
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.placement.refusals import refused
from pjrt_bridge.torch_interop.resident.calls.calls import (
    Call,
    argument,
    form_of,
    tensors_in,
)
from pjrt_bridge.torch_interop.resident.calls.checked_values import checked
from pjrt_bridge.torch_interop.resident.calls.other_sizes import Resizes, called, has_other_type
from pjrt_bridge.torch_interop.resident.calls.templates import (
    built,
    flattened,
    taking_symbols,
    with_tensors,
    write_back,
)
from pjrt_bridge.torch_interop.resident.client import failures
from pjrt_bridge.torch_interop.resident.client.chosen import chosen, eager_mode
from pjrt_bridge.torch_interop.resident.storages.storage import (
    Contents,
)
from pjrt_bridge.user_warnings import line_of_caller

_DIVIDING = ("div", "floor_divide", "fmod", "remainder", "true_divide")
"""Operators that divide, by the beginnings of their names."""


class NotTraceable(Exception):
    """A call that has no program, with the reason; None where everybody expects that."""


class _DependsOn(NotTraceable):
    """What a call computes depends on some of its numbers.

    Attributes:
        numbers: their places.
    """

    def __init__(self, numbers: frozenset[int]) -> None:
        super().__init__("what it computes depends on a number")
        self.numbers = numbers


def traced(call: Call, *, lifted: bool) -> CallProgram:
    """A program for calls like one.

    Args:
        call: an example.
        lifted: its numbers become arguments, but for those on which depends what is computed; the
            program serves one value of these.

    Raises:
        NotTraceable: it depends on data, or on all numbers that were to become arguments, or torch
            cannot trace it.
        Exception: what torch raises for arguments of these shapes and types.
    """
    fixed: frozenset[int] = frozenset()
    while True:
        try:
            return _traced(call, fixed, lifted=lifted)
        except _DependsOn as error:
            if error.numbers <= fixed or len(fixed | error.numbers) == len(call.numbers):
                raise
            fixed |= error.numbers


def _traced(call: Call, fixed: frozenset[int], *, lifted: bool) -> CallProgram:
    """See `traced`; the numbers at some places become no arguments."""
    client, _ = chosen(call.index)
    kernels = kernels_of(client)
    args, kwargs = call.template()
    # What tracing leaves behind may refer to these for a while, and must not keep tensors.
    op, constants = call.op, tuple(call.numbers)
    drawing = drawing_step(op) if lifted else None
    step = compat.traceable_step(op) or drawing or op
    layout: list[Any] = []
    rules = {
        **compat.unless_refused(refused, compat.eager_decompositions()),
        **compat.decompositions(refused=refused),
        **compat.accelerator_decompositions(traced=False),
    }
    with compat.real_tensors(), compat.fakes(symbolic=lifted) as mode:
        promises: list[Any] = [_promise(item) for item in call.given]
        symbolic = SymbolicNumbers(mode, call.numbers) if lifted else None
        if symbolic is not None:
            promises += symbolic.promises
            divisors = symbolic.promises if op.__name__.startswith(_DIVIDING) else ()
            if any(isinstance(item, torch.SymInt) and item == 0 for item in divisors):
                # Where integers are divided by zero, PyTorch raises.
                raise NotTraceable("it divides by zero")
        count = len(call.given)
        form = form_of(call.op)

        def run(*given: Any) -> list[Any]:
            numbers: Sequence[Any] = constants
            if lifted:
                numbers = [
                    constants[at] if at in fixed else item for at, item in enumerate(given[count:])
                ]
            taken = with_tensors(op, built(args, given, numbers))
            named = built(kwargs, given, numbers)
            other = None if drawing is not None else taking_symbols(op, taken, named, rules)
            taken = checked(op, taken, kernels)
            written = [
                item for place in form.written for item in tensors_in(argument(place, taken, named))
            ]
            found = called(other or step, op, (taken, named), written)
            for place in form.written:
                where = argument(place, args, kwargs)
                write_back(where, argument(place, taken, named), given, numbers)
            layout[:], outputs = flattened(form, found)
            if any(isinstance(item, torch.Tensor) and is_sparse(item) for item in outputs):
                raise NotTraceable("its result is sparse")
            return outputs

        def again(given: Sequence[torch.Tensor], *, numbers: Sequence[float] = ()) -> Any:
            taken = with_tensors(op, built(args, given, numbers))
            return op(*taken, **built(kwargs, given, numbers))

        try:
            if not lifted:
                with third_party_device.seen_by_python(), torch.no_grad():
                    taken = with_tensors(op, built(args, promises, constants))
                    cast = has_other_type(op, taken, built(kwargs, promises, constants))
                if cast:
                    raise NotTraceable("the type of out= is not that of its results")
            module = third_party_device.trace_call(
                run,
                promises,
                rules,
            )
        except compat.DATA_DEPENDENT as error:
            raise NotTraceable(None) from error
        except (NotTraceable, Resizes):
            raise
        except Exception as error:
            # If it is a mistake of the user, PyTorch's operator raises its own error.
            raise NotTraceable(f"torch cannot trace it: {error}") from error
    if symbolic is not None and symbolic.constant:
        raise _DependsOn(symbolic.constant)
    failures.called(str(call.op), line_of_caller())
    name = call.op.__name__.replace(".", "_")
    record = GraphRecord("inference", f"eager_{name}", client.plugin.name)
    eager = eager_mode()
    compiler = Compiler(
        client,
        BackendOptions(placement="device", check_indices=eager == "sync" or "auto"),
        ledger=EAGER,
    )
    placeholders = module.graph.find_nodes(op="placeholder")
    written = tuple(
        placeholders.index(node.args[0]) for node in module.graph.nodes if is_mutation(node)
    )
    module, steps = compiler.rewrite_call(module, record.kind)
    read = frozenset(
        at - count
        for at, node in enumerate(module.graph.find_nodes(op="placeholder"))
        if isinstance(compat.promise(node), torch.SymInt | torch.SymFloat) and node.users
    )
    if read:
        raise _DependsOn(read)
    if form.written and (reason := compiler.first_refusal(module)) is not None:
        # PyTorch's operator may give what it writes another size, which it does not promise.
        raise NotTraceable(reason)
    return CallProgram(
        str(call.op),
        compiler,
        module,
        record,
        steps,
        tuple(layout),
        count,
        len(constants),
        lifted,
        call.index,
        written,
        eager,
        form,
        again,
        None if symbolic is None else _conditions(call, symbolic, fixed, draws=drawing is not None),
    )


def _conditions(
    call: Call, symbolic: SymbolicNumbers, fixed: frozenset[int], *, draws: bool
) -> Callable[[Sequence[float]], bool] | None:
    """Whether what was traced serves certain numbers; None where it serves all."""
    conditions = [found] if (found := symbolic.conditions()) is not None else []
    if draws:
        conditions.insert(0, takes_numbers(call))
    if fixed:
        # Zeros of either sign are equal, and NaN is not equal to itself.
        values = {at: repr(call.numbers[at]) for at in fixed}
        conditions.insert(0, lambda given: all(repr(given[at]) == values[at] for at in values))
    return (lambda given: all(hold(given) for hold in conditions)) if conditions else None


def _promise(item: Contents | torch.Tensor) -> torch.Tensor:
    return torch.empty(item.shape, dtype=item.dtype, device="cpu")
