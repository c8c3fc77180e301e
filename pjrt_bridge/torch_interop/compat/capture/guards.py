"""Guards of Dynamo on the state of torch that a call finds.

Dynamo guards some of torch's settings itself. Of the precisions of products it knows only whether
CUDA's may take TF32.
"""

from __future__ import annotations

from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import (
    AttrSource,
    CallFunctionNoArgsSource,
    GlobalStateSource,
    ImportSource,
)
from torch._guards import Source, TracingContext

_WORDS = {"forward_ad._current_level": "the level of forward-mode differentiation"}
"""For parts of the code of guards what users read instead."""


def guard_answer(module: str, function: str, words: str) -> None:
    """Have the graph that is compiled be compiled again where a function gives another object.

    Args:
        module: where the function is.
        function: its name; it takes no arguments, and gives one of few objects.
        words: what it tells, for users who ask why a graph was compiled again.
    """
    context = TracingContext.try_get()
    if context is None:
        return
    package, *rest = module.split(".")
    # The code of guards begins with `__import__(package)`.
    where: Source = ImportSource(package)
    for name in (*rest, function):
        where = AttrSource(where, name)
    _WORDS[".".join((*rest, f"{function}()"))] = words
    source = CallFunctionNoArgsSource(where)
    context.guards_context.dynamo_guards.add(source.make_guard(GuardBuilder.ID_MATCH))


def guard_tangents() -> None:
    """Have the graph that is compiled be compiled again for calls in another dual level.

    The arguments of such calls may have tangents, which graphs for other calls leave out.
    """
    context = TracingContext.try_get()
    if context is not None:
        guard = GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL)
        context.guards_context.dynamo_guards.add(guard)


def in_words(reason: str) -> str:
    """What a user reads of a guard that failed, as Dynamo writes it."""
    found = next((words for code, words in _WORDS.items() if code in reason), None)
    return reason if found is None else f"{found} changed"
