"""Composites in torch: functions of tensors that stay one operation for compilers that know them.

    @composite("my.rope", version=1, attributes={"interleaved": True})
    def rope(x, cos, sin, *, scale=1.0): ...

In eager it is the function itself. While torch traces it, two operators that compute nothing mark
where it begins and ends; a pass makes one operation of what lies between them, or removes the marks
(`pjrt_bridge.torch_interop.passes.composites`). Marks give nothing that the function reads, so that
what it computes, its gradients, and memory that results share with arguments stay as they are.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from pjrt_bridge.errors import ArgumentError
from pjrt_bridge.stablehlo.composites import AttributeValue, Composite
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.wrong_arguments import checked, wrong

OPERATORS = "aten"
"""The namespace of composites that are operators of PyTorch."""

BEGIN = "pjrt_composites.begin.default"
END = "pjrt_composites.end.default"

_Called = TypeVar("_Called", bound=Callable[..., Any])


@checked
def composite(
    name: str, *, version: int = 0, attributes: Mapping[str, Any] | None = None
) -> Callable[[_Called], _Called]:
    """Mark a function of tensors as one operation with a name.

    The function takes tensors by position, at least one, and gives a tensor or several in a tuple
    or list. All tensors that it reads are its arguments. Arguments by keyword are attributes of the
    call: bools, integers, floats, texts, and lists of these.

    Args:
        name: with a namespace of one's own before a dot: `"my.rope"`.
        version: of what the name means.
        attributes: of every call.

    Raises:
        ArgumentError: a name, version or attribute that no composite can have; in a call also an
            argument or a result of another kind.
    """
    fixed = Composite(name, dict(attributes or {}), version)
    if name.startswith(f"{OPERATORS}."):
        expected = f"a namespace of your own; {OPERATORS!r} has PyTorch's operators"
        raise ArgumentError(wrong("composite: name", name, expected))

    def decorate(function: _Called) -> _Called:
        if not callable(function):
            raise ArgumentError(wrong(f"composite {name!r}", function, "a function"))
        defaults = getattr(function, "__kwdefaults__", None) or {}
        Composite(name, {**fixed.attributes, **defaults}, version)

        @functools.wraps(function)
        def called(*arguments: Any, **given: Any) -> Any:
            given = {**defaults, **given}
            _check_tensors(name, "argument", arguments)
            if not torch.compiler.is_compiling():
                Composite(name, given)
                results = function(*arguments, **given)
                _tensors(name, results)
                return results
            begun = torch.ops.pjrt_composites.begin(list(arguments))
            results = function(*arguments, **given)
            # Numbers apart: Dynamo may have symbols for them, which these lists fix.
            ints = {key: value for key, value in given.items() if type(value) is int}
            floats = {key: value for key, value in given.items() if type(value) is float}
            others = {
                key: value for key, value in given.items() if key not in ints and key not in floats
            }
            torch.ops.pjrt_composites.end(
                begun,
                _tensors(name, results),
                _text(name, version, {**fixed.attributes, **others}),
                [*ints, *floats],
                list(ints.values()),
                list(floats.values()),
            )
            return results

        return called  # type: ignore[return-value]

    return decorate


def _tensors(name: str, results: Any) -> list[torch.Tensor]:
    listed = list(results) if isinstance(results, (tuple, list)) else [results]
    _check_tensors(name, "result", listed)
    return listed


def _check_tensors(name: str, what: str, values: Sequence[Any]) -> None:
    if not values:
        raise ArgumentError(f"composite {name!r}: found no {what}s, expected at least one tensor")
    for index, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            found = type(value).__name__
            more = "; attributes are given by keyword" if what == "argument" else ""
            raise ArgumentError(
                f"composite {name!r}: {what} {index}: found {found}, expected a tensor{more}"
            )


# -- marks -----------------------------------------------------------------------------------------


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _text(name: str, version: int, attributes: Mapping[str, Any]) -> str:
    """A composite as the text that its mark has."""
    return encoded(Composite(name, attributes, version))


def encoded(composite: Composite) -> str:
    """A composite as text."""
    return json.dumps([composite.name, composite.version, dict(composite.attributes)])


def decoded(
    text: str, names: Sequence[str] = (), ints: Sequence[int] = (), floats: Sequence[float] = ()
) -> Composite:
    """The composite of a text that `encoded` gave, and of numbers that have the names."""
    name, version, attributes = json.loads(text)
    numbers = dict(zip(names, (*ints, *floats), strict=True))
    return Composite(name, {**attributes, **numbers}, version)


torch.library.define(
    "pjrt_composites::begin",
    "(Tensor[] arguments) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
torch.library.define(
    "pjrt_composites::end",
    "(Tensor begun, Tensor[] results, str composite, str[] names, int[] ints, float[] floats)"
    " -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _begun(arguments: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.empty(0, dtype=torch.bool, device="cpu")


def _ended(begun: torch.Tensor, results: Sequence[torch.Tensor], *composite: Any) -> None:
    return None


for _name, _function in (("begin", _begun), ("end", _ended)):
    torch.library.impl(f"pjrt_composites::{_name}", "CompositeExplicitAutograd")(_function)
    torch.library.register_fake(f"pjrt_composites::{_name}")(_function)


def _unmarked(info: Any, in_dims: Any, *args: Any) -> tuple[Any, None]:
    """Under `torch.vmap` arrays have further dimensions, for which the name says nothing."""
    return (_begun(()) if len(args) == 1 else None), None


for _name in ("begin", "end"):
    torch.library.register_vmap(f"pjrt_composites::{_name}", _unmarked)

# What has no results would be dropped from graphs otherwise.
fx.node.has_side_effect(torch.ops.pjrt_composites.end.default)


# -- one operation ---------------------------------------------------------------------------------


class _CompositeCall(compat.HigherOrderOperator):
    """One composite of a graph: `(graph, text, *arguments) -> tuple of results`.

    Tensors among the arguments are the operands, in order; others are sizes that the graph needs.
    """

    def __init__(self) -> None:
        super().__init__("pjrt_composite")  # type: ignore[no-untyped-call]

    def __call__(self, graph: Any, text: str, *arguments: Any) -> tuple[Any, ...]:
        """The results, as PyTorch computes them."""
        return tuple(graph(*arguments))


CALL = _CompositeCall()


# -- operators of PyTorch --------------------------------------------------------------------------


def of_operator(
    overload: compat.OpOverload,
    arguments: Mapping[str, Any],
    is_tensor: Callable[[Any], bool],
) -> tuple[Composite, dict[str, Any]] | None:
    """An operator as a composite, and its operands by name.

    Its name is that of the overload, its operands the tensors among the arguments, whose names the
    attribute `operand_names` lists. Other arguments are attributes, but for those of a library of
    CUDA; None is left out.

    Args:
        overload: the operator.
        arguments: of a call, by name.
        is_tensor: tells the tensors among these.

    Returns:
        None where an argument is nothing that an attribute can be.
    """
    operands = {name: value for name, value in arguments.items() if is_tensor(value)}
    attributes: dict[str, Any] = {"operand_names": list(operands)}
    for name, value in arguments.items():
        if name not in operands and value is not None and not name.startswith("cudnn"):
            attributes[name] = _attribute(value)
    try:
        return Composite(str(overload), attributes, _VERSION), operands
    except ArgumentError:
        return None


_VERSION = 1
"""Of the composites that are operators."""


def _attribute(value: Any) -> AttributeValue:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)):
        return tuple(map(_attribute, value))
    found: AttributeValue = value
    return found
