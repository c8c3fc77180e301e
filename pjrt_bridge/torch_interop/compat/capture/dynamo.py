"""Dynamo's data on the code that it compiles, and changes of how it traces."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._C._autograd import (
    _disable_profiler_legacy,
    _enable_profiler_legacy,
    _profiler_enabled,
)
from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)
from torch._dynamo import config
from torch._dynamo.decorators import assume_constant_result
from torch._dynamo.eval_frame import TorchPatcher
from torch._dynamo.symbolic_convert import tls
from torch._dynamo.utils import counters, get_compilation_metrics
from torch._guards import CompileContext
from torch.autograd import profiler_legacy
from torch.optim import adagrad, adam, rmsprop, sgd

from pjrt_bridge.torch_interop.compat.capture.causal_masks import trace_causal_masks
from pjrt_bridge.torch_interop.compat.capture.convolution_choice import choose_for_all_sizes
from pjrt_bridge.torch_interop.compat.capture.guards import in_words
from pjrt_bridge.torch_interop.compat.capture.kept_writes import keep_writes_into_numbers
from pjrt_bridge.torch_interop.compat.capture.numbers_in_tensors import trace_numbers_in_tensors
from pjrt_bridge.torch_interop.compat.capture.positions_in_tensors import (
    trace_positions_in_tensors,
)
from pjrt_bridge.torch_interop.compat.capture.products import trace_products
from pjrt_bridge.torch_interop.compat.capture.recurrent_modules import trace_recurrent_modules
from pjrt_bridge.torch_interop.compat.capture.sized_calls import trace_symbolic_sizes
from pjrt_bridge.torch_interop.compat.capture.sizes_in_numpy import trace_sizes_in_numpy
from pjrt_bridge.torch_interop.compat.capture.sizes_of_views import keep_sizes_of_views
from pjrt_bridge.torch_interop.compat.capture.strided_windows import trace_strided_windows
from pjrt_bridge.torch_interop.compat.capture.tensor_checks import trace_tensor_checks
from pjrt_bridge.torch_interop.compat.capture.tensor_types import trace_tensor_types
from pjrt_bridge.torch_interop.compat.capture.transforms import lay_out_transforms
from pjrt_bridge.torch_interop.compat.capture.warnings_of_torch import trace_warnings
from pjrt_bridge.torch_interop.compat.capture.whole_numbers import trace_whole_numbers
from pjrt_bridge.torch_interop.compat.decomposed.fused_steps import traced_step
from pjrt_bridge.torch_interop.compat.promises.symbolic_numbers import leave_calculations_to_python


def original(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """The function that torch.compile was given; None where it did not make this one."""
    return getattr(function, "_torchdynamo_orig_callable", None) or getattr(
        function, "_orig_mod", None
    )


def leave_alone(function: Callable[..., Any]) -> None:
    """Have Dynamo not compile a function that Python runs, nor what it calls.

    Torch calls kernels between the graphs of a compiled function, where Dynamo looks at all code.
    """
    set_code_exec_strategy(
        function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    )


def compile_id() -> tuple[int, int] | None:
    """While a graph is compiled: the number of its code, and how often that was compiled before."""
    found = CompileContext.current_compile_id()
    if found is None or found.frame_id is None:
        return None
    return found.frame_id, found.frame_compile_id or 0


def sizes_are_known_to_change() -> bool:
    """While a graph is compiled: whether its sizes are symbols because they changed, or are to.

    They are marked then, or a call brought others than those before. Under `dynamic=True` all
    sizes are symbols.
    """
    return bool(config.assume_static_by_default)


def recompile_reasons() -> dict[tuple[int, int], str]:
    """Why torch compiled code again, by `compile_id` (of the last compilations)."""
    reasons = {}
    for metrics in get_compilation_metrics():
        identity, _, again = str(metrics.compile_id).partition("/")
        if metrics.recompile_reason and identity.isdigit() and again.isdigit():
            # "0/0: tensor 'x' size mismatch ...": which compilation the guard belongs to.
            reason = metrics.recompile_reason.partition(": ")[2] or metrics.recompile_reason
            reasons[int(identity), int(again)] = in_words(reason.strip())
    return reasons


def graph_breaks() -> Mapping[str, int]:
    """Why torch divided functions into several graphs, and how often, since its last reset."""
    return _counted("graph_break")


def not_traced() -> Mapping[str, int]:
    """Reasons why torch could not trace, and how often, since its last reset.

    Most of it divides a function. For some, such as modules of recurrent networks, torch compiles
    nothing of the function, and counts no graph break.
    """
    return _counted("unimplemented")


def skipped_functions() -> Mapping[str, int]:
    """The functions that torch compiles nothing of, as they break in a loop, and how often."""
    found: Counter[str] = Counter()
    for text, count in counters["unimplemented"].items():
        skipped = _SKIPPED.search(text)
        if skipped is not None:
            name, file, line = skipped.groups()
            why = f"{file}:{line}: nothing of {name} is compiled, as it breaks in a loop: "
            found[why + _in_one_line(text.partition("*** While")[0])] += count
    return found


_SKIPPED = re.compile(r"frame skipped: (.+) \((.+) line (\d+)\)")
"""Torch's context of a graph break that it cannot resume from."""


def _counted(kind: str) -> Counter[str]:
    return Counter({_in_one_line(text): count for text, count in counters[kind].items()})


def graphs_made() -> int:
    """How many graphs torch gave to backends, since its last reset."""
    return int(counters["stats"]["unique_graphs"])


def division(graph: fx.GraphModule) -> str | None:
    """The user's line at which Dynamo ended a graph, and why; None where its function ends there.

    Args:
        graph: as a backend gets it.
    """
    reason: Any = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return None
    text = _in_one_line(str(reason.reason)) if str(reason.reason).strip() else "a graph break"
    for line in reversed(getattr(reason, "user_stack", None) or ()):
        return f"{line.filename}:{line.lineno}: {line.line}: {text}"
    return text


_GRAPH = "pjrt_bridge: a graph"
_OURS = frozenset({_GRAPH, "CompiledFunctionBackward"})


def marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, so that `outside_of_graphs` does not count what PyTorch runs within it."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if not _profiler_enabled():
            return function(*args)
        with torch.autograd.profiler.record_function(_GRAPH):
            return function(*args)

    return call


@contextmanager
def outside_of_graphs(into: Counter[str]) -> Iterator[None]:
    """Count the operators that PyTorch runs in a `with` block outside of the bridge's graphs.

    Operators within operators do not count. Nothing is counted while another profiler runs.
    """
    if _profiler_enabled():
        yield
        return
    # The newer profiler prints to standard error when it starts and stops.
    _enable_profiler_legacy(profiler_legacy.profile().config())  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        threads = _disable_profiler_legacy()
    for records in threads:
        into.update(_outermost(records))


def _outermost(records: Iterable[Any]) -> Iterator[str]:
    """Operators in the records of one thread that are in no other operator and in no graph."""
    entered: dict[Any, str] = {}
    for record in records:
        key, name = (record.handle(), record.node_id()), record.name()
        if record.kind() == "pop":
            # Another thread may have entered it, such as one that communicates.
            entered.pop(key, None)
        elif record.kind() == "push":
            within = entered.values()
            if (
                _is_operator(name)
                and name not in _BOOKKEEPING
                and not any(item in _OURS or _is_operator(item) for item in within)
            ):
                yield name.replace("::", ".")
            entered[key] = name


_BOOKKEEPING = frozenset({"aten::detach", "aten::alias"})
"""What AOTAutograd calls around a graph, which computes nothing."""


def _is_operator(name: str) -> bool:
    return "::" in name and not name.startswith("autograd::")


def _choose_steps() -> None:
    """Let Dynamo trace other steps of some optimizers for this backend, and for no other.

    Torch keeps Dynamo out of fused steps. Of RMSprop's step without lists Dynamo makes an operator
    that would be compiled for each learning rate.
    """
    TorchPatcher.patch()
    for module in (adagrad, adam, sgd):
        name = f"_fused_{module.__name__.rpartition('.')[2]}"
        disabled = getattr(module, name, None)
        plain = None if disabled is None else original(disabled)
        traced = None if plain is None else traced_step(plain)
        if disabled is not None and traced is not None:
            setattr(module, name, _chosen(traced, disabled))
    step, of_lists = (
        getattr(rmsprop, f"_{kind}_tensor_rmsprop", None) for kind in ("single", "multi")
    )
    if step is not None and of_lists is not None:
        setattr(rmsprop, step.__name__, _chosen(of_lists, step))


def _chosen(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """The first where Dynamo traces for this backend, and the second for others."""

    def step(*lists: Any, **given: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() and not any(map(given.get, _OTHERS)):
            return (ours if _compiles_for_pjrt() else theirs)(*lists, **given)
        return theirs(*lists, **given)

    return step


_OTHERS = ("differentiable", "has_complex", "has_sparse_grad")
"""Arguments of steps that are not given to other steps than those that were asked for."""


@assume_constant_result  # type: ignore[untyped-decorator]
def _compiles_for_pjrt() -> bool:
    """Whether what Dynamo traces now is for this backend; asked while it traces."""
    return _is_traced_for_pjrt()


def _is_traced_for_pjrt() -> bool:
    translator = getattr(tls, "current_tx", None)
    return translator is not None and _is_for_pjrt(translator)


def _is_for_pjrt(translator: Any) -> bool:
    return getattr(translator.output.compiler_fn, "_compiler_name", None) == "pjrt"


def trace_recurrent_layers(
    functions: Mapping[Any, Callable[..., Any]], is_supported: Callable[..., bool]
) -> None:
    """Have Dynamo trace modules of recurrent layers for this backend.

    Args:
        functions: see `trace_recurrent_modules`.
        is_supported: see there.
    """
    trace_recurrent_modules(functions, is_supported, _is_for_pjrt)


_choose_steps()
trace_symbolic_sizes(_is_for_pjrt)
trace_products(_is_for_pjrt)
trace_strided_windows(_is_for_pjrt)
trace_sizes_in_numpy(_is_for_pjrt)
trace_whole_numbers(_is_for_pjrt)
trace_tensor_checks(_is_for_pjrt)
trace_tensor_types(_is_for_pjrt)
trace_warnings(_is_for_pjrt)
trace_causal_masks(_is_for_pjrt)
trace_numbers_in_tensors(_is_for_pjrt)
trace_positions_in_tensors(_is_for_pjrt)
choose_for_all_sizes(_is_traced_for_pjrt)
keep_sizes_of_views(_is_traced_for_pjrt)
lay_out_transforms(_is_traced_for_pjrt)
leave_calculations_to_python()
keep_writes_into_numbers()


def _in_one_line(text: str) -> str:
    """Torch's summary, explanation and first hint of a graph break."""
    summary, *rest = [line.strip() for line in text.splitlines() if line.strip()]
    found: dict[str, str] = {}
    for line in rest:
        head, colon, words = line.partition(": ")
        if colon:
            found.setdefault(head, words)
    explained = [found[head] for head in ("Explanation", "Hint") if head in found]
    return ": ".join([summary, " ".join(explained)]) if explained else summary
