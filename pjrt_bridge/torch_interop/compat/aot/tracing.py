"""Functional graphs of functions of tensors, traced beside other threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import fx
from torch._decomp import decompositions as torch_decompositions
from torch.fx._symbolic_trace import PH
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    PythonKeyTracer,
    disable_autocast_cache,
    dispatch_trace,
    fake_signature,
    set_original_aten_op,
    wrap_key,
)


class _LocalTracer(PythonKeyTracer):
    """A tracer that marks nothing and changes no class.

    Torch's own sets a mark that all threads read (compiled functions refuse to run meanwhile), and
    replaces methods of `nn.Module`, which functions of tensors have no use for. Where two of them
    run at once, in two threads, the one that ends last restores what the other one had set.
    """

    def trace(
        self,
        root: torch.nn.Module | Callable[..., Any],
        concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    ) -> fx.Graph:
        """The graph of a function; see `torch.fx.Tracer.trace`."""
        self.root = torch.nn.Module()
        self.graph = fx.Graph(tracer_cls=type(self))
        self.tensor_attrs = {}
        function, args = self.create_args_for_root(root, False, concrete_args)
        self.create_node("output", "output", (self.create_arg(function(*args)),), {})
        return self.graph


def trace_beside_others(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    table: Mapping[Any, Callable[..., Any]],
) -> fx.GraphModule:
    """What `make_fx` gives, without effect on what other threads do meanwhile.

    Args:
        function: of tensors and numbers; no higher-order operator is called in it.
        arguments: for it: fake tensors and symbolic numbers.
        table: decompositions.

    Raises:
        Exception: what an operator raises for tensors of these shapes and types.
    """
    tracer = _LocalTracer()
    rules = {torch.ops.aten.sym_numel.default: torch_decompositions.sym_numel, **table}
    named = fake_signature(function, len(arguments))
    with _proxies(tracer, rules), disable_autocast_cache():
        return dispatch_trace(
            wrap_key(named, tuple(arguments), tracer, False),
            tracer=tracer,
            concrete_args=(PH,) * len(arguments),
        )


def _proxies(
    tracer: PythonKeyTracer, rules: Mapping[Any, Callable[..., Any]]
) -> ProxyTorchDispatchMode:
    """The mode that records operators, with decompositions of its own."""
    if "decomposition_table" in signature(ProxyTorchDispatchMode).parameters:
        return ProxyTorchDispatchMode(tracer, "real", decomposition_table=rules)
    return _Decomposing(tracer, rules)


class _Decomposing(ProxyTorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode for a torch (2.11) whose modes of all threads read one table of decompositions."""

    def __init__(self, tracer: PythonKeyTracer, rules: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__(tracer, "real")
        self._rules = rules

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = self._rules.get(func)
        if rule is not None:
            with set_original_aten_op(func), self:
                found = rule(*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        return super().__torch_dispatch__(func, types, args, kwargs)


class _FromElsewhere(logging.Filter):
    """Drops what the thread that made it logs."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread


@contextmanager
def errors_unlogged() -> Iterator[None]:
    """A context in which errors of operators are raised without being logged as well.

    Torch logs a trace of its own code for each error of an operator on tensors without memory.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    others = _FromElsewhere()
    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)
