"""Kernels for host tensors of operators that PyTorch has none for: their lowering, compiled.

Each combination of shapes, strides, element types and other arguments, and of torch's settings for
products, is compiled once, for the default plugin.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.mixed.records import GraphRecord
from pjrt_bridge.registry import client as select_client
from pjrt_bridge.torch_interop import compat, precision
from pjrt_bridge.torch_interop.bind.graphs import DeviceGraph
from pjrt_bridge.torch_interop.bind.graphs import run as run_graph
from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.compat.devices import third_party_device
from pjrt_bridge.torch_interop.compiling.graphs import GraphCompiler
from pjrt_bridge.torch_interop.compiling.target import Target
from pjrt_bridge.torch_interop.ledger import EAGER
from pjrt_bridge.torch_interop.options import BackendOptions

_CompiledCall = Callable[..., Sequence[torch.Tensor]]

_OPTIONS = BackendOptions(placement="device", fallback="error")

_KEPT = 512
"""Programs; with one more the oldest is dropped."""

_programs: dict[Hashable, _CompiledCall] = {}
_compiling = threading.RLock()
_states_precisions = False
"""Programs were compiled that state how exact products are: torch's settings tell them apart."""


def kernel(op: OpOverload) -> Callable[..., Any]:
    """The kernel of an operator for host tensors.

    It raises a `ProgramError` where the operator does not lower, and a `FallbackForbidden` where
    its program cannot be compiled: no other kernel could take its place.
    """
    returns = op._schema.returns
    is_list = len(returns) == 1 and isinstance(returns[0].type, torch.ListType)
    is_single = len(returns) == 1 and not is_list

    def run(*args: Any) -> Any:
        tensors: list[torch.Tensor] = []
        key = op, _settings(), _form(args, tensors)
        results = _program(key, op, args, tensors)(*tensors)
        if is_single:
            return results[0]
        return list(results) if is_list else tuple(results)

    return run


def results_of_plain(
    op: OpOverload, name: str, tensors: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor] | None:
    """What `op(name, tensors, ())` gives, without torch's dispatcher, which takes longer.

    None where something else than the kernel for host tensors has a part in the call: gradients,
    modes and transformations, tensors of other devices, layouts or classes, or that are negated or
    conjugated lazily.
    """
    if compat.is_observed() or compat.is_forward_mode():
        return None
    key: list[Hashable] = [name, _settings()]
    is_recorded = False
    for tensor in tensors:
        if type(tensor) not in _CLASSES or not tensor.is_cpu or tensor.layout is not torch.strided:
            return None
        if tensor.is_neg() or tensor.is_conj():
            return None
        key += tensor.dtype, tensor.shape, tensor.stride()
        is_recorded = is_recorded or tensor.requires_grad
    if is_recorded and torch.is_grad_enabled():
        return None
    found = tuple(key)
    program = _programs.get(found)
    if program is None:
        program = _program(found, op, (name, tensors, ()), tensors)
    return program(*tensors)


_CLASSES = (torch.Tensor, torch.nn.Parameter)


def _program(
    key: Hashable, op: OpOverload, args: Sequence[Any], tensors: Sequence[torch.Tensor]
) -> _CompiledCall:
    program = _programs.get(key)
    if program is None:
        with _compiling:
            program = _programs.get(key)
            if program is None:
                program = _programs[key] = _compile(op, args, tensors)
                if len(_programs) > _KEPT:
                    del _programs[next(iter(_programs))]
    return program


def forget() -> None:
    """Drop all programs."""
    _programs.clear()


def _settings() -> Hashable:
    return precision.settings() if _states_precisions else None


def _form(value: Any, tensors: list[torch.Tensor]) -> Hashable:
    """The part of a program's key that arguments decide; collects the tensors."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return value.dtype, value.shape, value.stride()
    if isinstance(value, (list, tuple)):
        return tuple([_form(item, tensors) for item in value])
    # 1 and True are equal.
    return type(value), value


def _with(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Arguments with other tensors."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, (list, tuple)):
        return [_with(item, tensors) for item in value]
    return value


def _compile(op: OpOverload, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> _CompiledCall:
    client = select_client(None)
    with compat.real_tensors(), compat.fakes(symbolic=False):
        promises = [
            torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="cpu")
            for item in tensors
        ]

        def call(*given: torch.Tensor) -> list[torch.Tensor]:
            found = op(*_with(args, iter(given)))
            return list(found) if isinstance(found, (list, tuple)) else [found]

        graph = third_party_device.trace_call(call, promises, {})
    global _states_precisions
    target = Target.of(client, _OPTIONS, EAGER, precision.settings())
    _states_precisions = _states_precisions or target.precisions is not None
    for reason in target.placement().fallback_reasons(graph.graph).values():
        raise ProgramError(f"{reason.operator} on plugin {target.plugin!r}: {reason.reason}")
    compiler = GraphCompiler(target)
    record = GraphRecord("inference", op.__name__.partition(".")[0], client.plugin.name)
    compiled = compiler.compile(graph, record, frozenset())

    def usual(*values: torch.Tensor) -> Sequence[torch.Tensor]:
        found: Sequence[torch.Tensor] = run_graph(compiled, list(values))
        return found

    entrance = compiled.fast_path() if isinstance(compiled, DeviceGraph) else None
    return usual if entrance is None else entrance.before(usual)
