"""StableHLO as an operator of torch.

    def scaled(b, x, *, factor):
        return b.multiply(x, b.full(x.shape, factor, x.dtype))

    scale = custom_op("mylib::scale", scaled, schema="(Tensor x, float factor) -> Tensor")
    scale(torch.ones(3), 2.0)

In eager the operator is one program; in a graph that is compiled or exported, what the builder
writes, or the program, is a part of the program of the graph.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ArgumentError, OptionError, ProgramError
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.foreign.eager import kernel
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import lowering
from pjrt_bridge.torch_interop.schemas import bind
from pjrt_bridge.torch_interop.tensors import torch_dtype
from pjrt_bridge.wrong_arguments import checked, wrong

_NAME = re.compile(r"(?!__)[A-Za-z_]\w*::(?!__)[A-Za-z_]\w*(\.\w+)?", re.ASCII)

Write = Callable[..., Value | Sequence[Value]]
"""Takes a Builder, a value for each tensor, and what else the schema has by its name."""

GradientsFunction = Callable[[Sequence[Any], Sequence[torch.Tensor], Sequence[torch.Tensor]], Any]
"""Takes arguments, results and gradients of results; gives the gradients of tensor arguments."""


@checked
def custom_op(
    name: str,
    program: Program | str | bytes | Write,
    *,
    schema: str | None = None,
    fake: Callable[..., Any] | None = None,
    backward: GradientsFunction | None = None,
) -> Any:
    """Register an operator of torch that is written in StableHLO.

    Args:
        name: such as `"mylib::fused"`.
        program: for tensors of certain types: a Program, or StableHLO as text or bytes. For
            tensors of any type: a function that writes it with a Builder.
        schema: in torch's words: `"(Tensor x, float eps) -> (Tensor, Tensor)"`. By default each
            parameter is a tensor, and there is one result, or as many as the program has.
        fake: gives tensors like the results for tensors without memory, also where sizes are
            symbols. By default the builder is run, and sizes become numbers.
        backward: gives the gradients of the tensor arguments, in their order, for (arguments,
            results, gradients of the results); None for what has none. It computes with tensors of
            torch, other such operators among them.

    Returns:
        The operator.

    Raises:
        ArgumentError: a program, `fake` or `backward` of another kind.
        OptionError: a name that is none or is taken, or a schema that torch refuses.
        ProgramError: StableHLO that is none.
    """
    for what, given in (("fake", fake), ("backward", backward)):
        if given is not None and not callable(given):
            raise ArgumentError(wrong(f"custom_op: {what}", given, "a function"))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(f"custom_op: name: found {name!r}, expected 'namespace::operator'")
    dotted = f"{name.replace('::', '.')}.default"
    if compat.operator(dotted) is not None:
        raise OptionError(f"custom_op: name: torch has an operator {name!r} already")
    write = _writer(program)
    declared = _schema(write) if schema is None else schema
    try:
        torch.library.define(name, declared, tags=(torch.Tag.pt2_compliant_tag,))
    except (RuntimeError, ValueError) as error:
        raise OptionError(f"custom_op: schema {declared!r} of {name!r}: {error}") from error
    op = compat.operator(dotted)
    assert op is not None

    def lower(context: Context, *args: Any, **kwargs: Any) -> Any:
        found = _written(write, context.b, bind(op, args, kwargs))
        return found if len(found) != 1 else found[0]

    lowering(dotted)(lower)
    torch.library.impl(name, "CPU")(kernel(op))
    torch.library.register_fake(name)(fake or _fake_of(op, write))
    if backward is None:
        compat.register_gradients(op)
    else:
        _differentiate(op, backward)
    return op


class _Called:
    """Calls a program that is there."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __call__(self, b: Builder, *values: Value) -> Sequence[Value]:
        return b.call(self.program, values)


def _writer(program: Program | str | bytes | Write) -> Write:
    if isinstance(program, (str, bytes)):
        program = Program.parse(program)
    if isinstance(program, Program):
        return _Called(program)
    if not callable(program):
        raise ArgumentError(wrong("custom_op: program", program, "StableHLO or a function"))
    return program


def _schema(write: Write) -> str:
    if isinstance(write, _Called):
        signature = write.program.signature
        names = [f"x{index}" for index in range(len(signature.parameters))]
        count = len(signature.results)
    else:
        names, count = list(inspect.signature(write).parameters)[1:], 1
    results = ", ".join(["Tensor"] * count)
    listed = ", ".join(f"Tensor {name}" for name in names)
    return f"({listed}) -> {results if count == 1 else f'({results})'}"


def _written(write: Write, b: Builder, arguments: dict[str, Any]) -> tuple[Value, ...]:
    """The values that a program writes for arguments by name."""
    values = [value for value in arguments.values() if isinstance(value, Value)]
    others = {name: item for name, item in arguments.items() if not isinstance(item, Value)}
    found = write(b, *values, **others)
    return (found,) if isinstance(found, Value) else tuple(found)


def _fake_of(op: compat.OpOverload, write: Write) -> Callable[..., Any]:
    """Results as the operations that are written give them."""

    def fake(*args: Any, **kwargs: Any) -> Any:
        named = bind(op, args, kwargs)
        tensors = {name: item for name, item in named.items() if isinstance(item, torch.Tensor)}
        builder = Builder(
            [
                TensorType(tuple(map(int, item.shape)), dtypes.from_torch(item.dtype))
                for item in tensors.values()
            ]
        )
        values = dict(zip(tensors, builder.parameters, strict=True))
        found = _written(write, builder, named | values)
        expected = len(op._schema.returns)
        if len(found) != expected:
            raise ProgramError(f"{op}: found {len(found)} results, its schema has {expected}")
        device = next((item.device for item in tensors.values()), torch.device("cpu"))
        results = [
            torch.empty(value.shape, dtype=torch_dtype(value.dtype), device=device)
            for value in found
        ]
        return results[0] if len(results) == 1 else tuple(results)

    return fake


def _differentiate(op: compat.OpOverload, backward: GradientsFunction) -> None:
    places = [
        at
        for at, item in enumerate(op._schema.arguments)
        if isinstance(item.type, torch.TensorType)
    ]

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        results = output if isinstance(output, tuple) else (output,)
        ctx.others = [None if at in places else item for at, item in enumerate(inputs)]
        ctx.save_for_backward(*(inputs[at] for at in places), *results)

    def gradients(ctx: Any, *given: torch.Tensor) -> tuple[Any, ...]:
        arguments = list(ctx.others)
        tensors, results = ctx.saved_tensors[: len(places)], ctx.saved_tensors[len(places) :]
        for at, tensor in zip(places, tensors, strict=True):
            arguments[at] = tensor
        found = backward(tuple(arguments), results, given)
        found = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        if len(found) != len(places):
            raise ProgramError(
                f"{op}: backward: found {len(found)} gradients, expected one for each of "
                f"{len(places)} tensors"
            )
        by_place = dict(zip(places, found, strict=True))
        return tuple(by_place.get(at) for at in range(len(arguments)))

    compat.register_gradients(op, gradients, setup)
