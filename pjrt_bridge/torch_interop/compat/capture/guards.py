"""Guards of Dynamo on what a function of Python answers.

Dynamo guards some of torch's settings itself. Of the precisions of products it knows only whether
CUDA's may take TF32.
"""

from __future__ import annotations

from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource, ImportSource
from torch._guards import Source, TracingContext

_WORDS: dict[str, str] = {}
"""For calls as they end in the code of guards what users read instead."""


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


def in_words(reason: str) -> str:
    """What a user reads of a guard that failed, as Dynamo writes it."""
    found = next((words for code, words in _WORDS.items() if code in reason), None)
    return reason if found is None else f"{found} changed"
