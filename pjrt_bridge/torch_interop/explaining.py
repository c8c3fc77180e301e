"""explain(): a report of what a function runs where, and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from pjrt_bridge.errors import OptionError
from pjrt_bridge.mixed.records import GraphRecord, Watch, watching
from pjrt_bridge.report.data import GraphReport
from pjrt_bridge.report.report import Report
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.ledger import LEDGER
from pjrt_bridge.wrong_arguments import checked


@checked
def explain(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Compile a function, call it, and report what ran where, why, and what it cost.

    The function is called four times: once to compile it, once segment by segment to take the
    times, once undisturbed, once to see what PyTorch runs outside of graphs. Results that require
    gradients are sent backward too, without touching the `grad` of any tensor. Arguments,
    parameters and buffers that a call writes into get their values back, and so does the random
    state; other effects of the function happen four times.

    Args:
        function: a function or module. What torch.compile made for the `pjrt` backend is called as
            it is, with its options; anything else is compiled with the default options.
        args: its arguments.
        kwargs: its arguments by name.

    Raises:
        Exception: whatever compiling or calling the function raises.
    """
    return _explained({}, function, args, kwargs)


@checked
def explain_with(
    options: Mapping[str, Any], function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Report:
    """`explain`, compiling with options of the backend.

    Raises:
        OptionError: the function is compiled already, so that options come too late.
    """
    return _explained(options, function, args, kwargs)


def _explained(
    options: Mapping[str, Any],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Report:
    plain = compat.original(function)
    if plain is not None and options:
        raise OptionError(
            f"{_name(plain)} is compiled already; give {', '.join(options)} to torch.compile, as "
            "options={...}"
        )
    compiled = function
    if plain is None:
        compiled = torch.compile(function, backend="pjrt", options=dict(options))

    def call(around: AbstractContextManager[None]) -> float:
        with _undone(function, args, kwargs):
            started = time.perf_counter()
            with around, compat.errors_unlogged():
                results = compiled(*args, **kwargs)
            _backward(results)
            return time.perf_counter() - started

    return report_on(_name(plain or function), call)


def report_on(program: str, call: Callable[[AbstractContextManager[None]], float]) -> Report:
    """The report on what calls of compiled functions, or of what calls these, do.

    Args:
        program: its name.
        call: makes one call within a context; gives the seconds that it took.
    """
    known = frozenset(LEDGER.graphs)
    breaks, untraced = compat.graph_breaks(), compat.not_traced()
    skipped = compat.skipped_functions()
    outside: Counter[str] = Counter()
    first = call(nullcontext())
    with watching() as watch:
        call(nullcontext())
    again = call(nullcontext())
    # By itself: a profiler takes time. Calls that are watched take no fast path past its marks.
    with watching():
        call(compat.outside_of_graphs(outside))
    graphs = _graphs(watch, known)
    return Report(
        program=program,
        graphs=tuple(graphs),
        breaks=(
            (*_breaks(watch, breaks), *_new(compat.skipped_functions(), skipped))
            or tuple(_new(compat.not_traced(), untraced))
        ),
        first_seconds=first if any(record not in known for record in watch.calls) else None,
        call_seconds=again,
        outside=dict(outside.most_common()),
    )


def _breaks(watch: Watch, before: Mapping[str, int]) -> tuple[str, ...]:
    """Where Dynamo divided the function that was called, and why."""
    found = dict.fromkeys(
        record.division
        for record in watch.calls
        if record.division is not None and record.kind != "backward"
    )
    # At some lines Dynamo had no graph yet, so no record tells of them.
    others = (
        reason
        for reason in _new(compat.graph_breaks(), before)
        if not any(line.endswith(reason) for line in found)
    )
    return (*found, *others)


def _new(reasons: Mapping[str, int], before: Mapping[str, int]) -> Iterator[str]:
    """The reasons that were counted since then."""
    return (reason for reason, count in reasons.items() if count > before.get(reason, 0))


def _graphs(watch: Watch, known: frozenset[GraphRecord]) -> Iterator[GraphReport]:
    """The graphs that ran, and others that were compiled for the same code or the same call."""
    names = _DistinctNames()
    codes = {record.code[0] for record in watch.calls if record.code is not None}
    reasons = compat.recompile_reasons()
    for record in LEDGER.graphs:
        call = watch.calls.get(record)
        related = record.code is not None and record.code[0] in codes
        if call is not None or related or record not in known:
            # Torch compiles forward and backward together, so its reason belongs to both.
            reason = None if record.code is None else reasons.get(record.code)
            found = record.report(call, reason, ran=call is not None)
            within = None if record.within is None else names.of(record.within)
            yield replace(found, name=names.of(record), within=within)


class _DistinctNames:
    """Names of graphs, made different where several have the same."""

    def __init__(self) -> None:
        self._given: dict[GraphRecord, str] = {}
        self._count: Counter[str] = Counter()

    def of(self, record: GraphRecord) -> str:
        """The name of a graph."""
        if record not in self._given:
            self._count[record.name] += 1
            count = self._count[record.name]
            self._given[record] = record.name if count == 1 else f"{record.name} {count}"
        return self._given[record]


@contextmanager
def _undone(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[None]:
    """Give tensors that are written into their values back, and the random state."""
    tensors = [leaf for leaf in compat.tree_leaves((args, kwargs)) if _is_plain(leaf)]
    owner = function if isinstance(function, torch.nn.Module) else _owner(function)
    if owner is not None:
        tensors += [*owner.parameters(), *owner.buffers()]
    saved = [(tensor, tensor.detach().clone(), tensor._version) for tensor in tensors]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, values, version in saved:
                    if tensor._version != version:
                        tensor.copy_(values)


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not leaf.is_inference()


def _owner(function: Callable[..., Any]) -> torch.nn.Module | None:
    found = getattr(compat.original(function) or function, "__self__", None)
    return found if isinstance(found, torch.nn.Module) else None


def _backward(results: Any) -> None:
    """Send all results that require gradients backward, and drop the gradients."""
    outputs = [
        leaf
        for leaf in compat.tree_leaves(results)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    leaves = compat.leaves_of(outputs)
    if leaves:
        ones = [torch.ones_like(output) for output in outputs]
        torch.autograd.grad(outputs, leaves, ones, allow_unused=True)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)
