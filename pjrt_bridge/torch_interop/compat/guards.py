"""Guards of Dynamo on what a function of Python answers.

Dynamo guards some of torch's settings itself. Of the precisions of products it knows only whether
CUDA's may take TF32.
"""

from __future__ import annotations

from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource, ImportSource
from torch._guards import Source, TracingContext


def guard_answer(module: str, function: str) -> None:
    """Have the graph that is compiled be compiled again where a function gives another object.

    Args:
        module: where the function is.
        function: its name; it takes no arguments, and gives one of few objects.
    """
    context = TracingContext.try_get()
    if context is None:
        return
    package, *rest = module.split(".")
    where: Source = ImportSource(package)
    for name in (*rest, function):
        where = AttrSource(where, name)
    source = CallFunctionNoArgsSource(where)
    context.guards_context.dynamo_guards.add(source.make_guard(GuardBuilder.ID_MATCH))
