"""Run one operator, or one traced function, through its lowerings.

What is emitted runs twice: in StableHLO's reference interpreter and on the CPU plugin, which share
no code. `make test` has the plugin, which takes most of the time, compile every operator once and
of the other programs one in four; the interpreter, and `make test-full`, have all. The oracle is
eager torch; the promise of shapes and types that a lowering is given comes from fake tensors, as it
does in a compiled graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import pjrt_bridge
from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.lowering import registry
from pjrt_bridge.torch_interop.lowering.context import Context, MemoryOrder
from tests import extent

TOLERANCE = {
    torch.float64: (1e-9, 1e-9),
    torch.complex128: (1e-9, 1e-9),
    torch.float32: (2e-5, 2e-5),
    torch.complex64: (2e-5, 2e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1e-2, 1e-2),
}
"""(relative, absolute); types that are not listed must agree exactly."""


def replace(tree: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """The nested arguments with every instance of `kind` changed."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, dict):
        return {k: replace(v, kind, change) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(replace(v, kind, change) for v in tree)
    return tree


def overload(name: str) -> Any:
    """The operator of a name such as `aten.add.Tensor`."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


def tensor_type(t: torch.Tensor) -> TensorType:
    return TensorType(tuple(t.shape), dtypes.from_torch(t.dtype))


def to_numpy(t: torch.Tensor) -> np.ndarray:
    dense = t.detach().resolve_conj().contiguous()
    if dense.dtype == torch.bfloat16:
        return dense.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return dense.numpy()


def to_torch(array: np.ndarray) -> torch.Tensor:
    dense = np.array(array, order="C")
    if dense.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(dense.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(dense)


def as_list(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def fake_outputs(op: Any, args: Any, kwargs: Any) -> tuple[TensorType | None, ...]:
    """What torch promises about the outputs of a node."""
    with FakeTensorMode() as mode:
        faked = replace((args, kwargs), torch.Tensor, mode.from_tensor)
        outputs = as_list(op(*faked[0], **faked[1]))
    return tuple(tensor_type(t) if isinstance(t, torch.Tensor) else None for t in outputs)


@cache
def _client() -> Any:
    return pjrt_bridge.client("cpu")


_COMPILED: dict[str, Any] = {}


def run_on_cpu(program: Program, *arrays: np.ndarray) -> list[np.ndarray]:
    """Compile and run a program on the CPU plugin; the last ones are kept for other values."""
    key = program.fingerprint
    executable = _COMPILED.pop(key, None)
    if executable is None:
        executable = _client().compile(program)
    _COMPILED[key] = executable
    if len(_COMPILED) > 16:
        del _COMPILED[next(iter(_COMPILED))]
    return [np.asarray(output) for output in executable(*arrays)]


BOTH = (evaluate, run_on_cpu)

_PART = 4
"""In `make test` one program in so many is compiled by the plugin."""

_seen: set[str] = set()


def engines_for(name: str, program: Program) -> Sequence[Any]:
    """What runs a program of an operator: the first one of a process always runs on both.

    The others are chosen by their content, so it is the same ones each time.
    """
    if extent.everything() or name not in _seen or int(program.fingerprint, 16) % _PART == 0:
        _seen.add(name)
        return BOTH
    return (evaluate,)


def emit(
    name: str, *args: Any, input_order: MemoryOrder = MemoryOrder.WHOLE, **kwargs: Any
) -> tuple[Program, list[torch.Tensor], list[bool]]:
    """The program of one operator, its inputs, and which outputs it has.

    That the outputs have the promised shapes and types is asserted.
    """
    tensors: list[torch.Tensor] = []
    replace((args, kwargs), torch.Tensor, tensors.append)
    builder = Builder([tensor_type(t) for t in tensors])
    remaining = iter(builder.parameters)
    given, named = replace((args, kwargs), torch.Tensor, lambda _: next(remaining))
    promised = fake_outputs(overload(name), args, kwargs)
    found = registry.find_lowering(name)
    assert found is not None, f"no lowering for {name}"
    context = Context(builder, promised, input_order=input_order)
    results = as_list(found(context, *given, **named))
    assert len(results) == len(promised)
    for value, expected in zip(results, promised, strict=True):
        assert (value is None) or (value.type == expected), f"{value.type} is not {expected}"
    program = builder.finish([value for value in results if value is not None])
    return program, tensors, [value is not None for value in results]


def lower(
    name: str, *args: Any, engine: Any = evaluate, **kwargs: Any
) -> list[torch.Tensor | None]:
    """The operator's outputs by its lowering, None where it has none."""
    return _run(engine, *emit(name, *args, **kwargs))


def _run(
    engine: Any, program: Program, tensors: Sequence[torch.Tensor], present: Sequence[bool]
) -> list[torch.Tensor | None]:
    arrays = iter(engine(program, *map(to_numpy, tensors)))
    return [to_torch(next(arrays)) if there else None for there in present]


def check(
    name: str,
    *args: Any,
    exact: bool = False,
    engines: Sequence[Any] | None = None,
    **kwargs: Any,
) -> None:
    """Compare the lowering with eager torch; it is asked once for all engines.

    Those are chosen by `engines_for` unless a test says which.
    """
    expected = as_list(overload(name)(*args, **kwargs))
    emitted = emit(name, *args, **kwargs)
    for engine in engines or engines_for(name, emitted[0]):
        compare(_run(engine, *emitted), expected, exact=exact)


def compare(
    found: Sequence[torch.Tensor | None], expected: Sequence[Any], *, exact: bool = False
) -> None:
    """Equal shapes, and values equal within the tolerance of their type; NaN equals NaN.

    Exactly equal numbers have the same signs, those of zeros included.
    """
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if ours is None or theirs is None:
            continue
        rtol, atol = (0, 0) if exact else TOLERANCE.get(ours.dtype, (0, 0))
        assert ours.shape == theirs.shape
        torch.testing.assert_close(
            ours, theirs.to(ours.dtype), rtol=rtol, atol=atol, equal_nan=True
        )
        if exact and ours.is_floating_point():
            signs = [item.double().signbit()[~ours.isnan()] for item in (ours, theirs)]
            assert torch.equal(*signs)


def trace(function: Callable[..., Any], *args: torch.Tensor, table: Any) -> torch.fx.Graph:
    """The function's operators after functionalization and decomposition."""
    pure = torch.func.functionalize(function, remove="mutations_and_views")
    return make_fx(pure, decomposition_table=table, tracing_mode="fake")(*args).graph


def lower_graph(graph: torch.fx.Graph, *args: torch.Tensor, engine: Any) -> list[torch.Tensor]:
    """The results of a traced function, all of whose operators are lowered into one program."""
    builder = Builder([tensor_type(t) for t in args])
    remaining = iter(builder.parameters)
    values: dict[torch.fx.Node, Any] = {}
    for node in graph.nodes:
        given, named = replace((node.args, node.kwargs), torch.fx.Node, values.__getitem__)
        if node.op == "placeholder":
            values[node] = next(remaining)
        elif node.op == "output":
            program = builder.finish(as_list(given[0]))
        elif node.op == "get_attr":
            raise AssertionError(f"a traced test function must hold no constant: {node.target}")
        elif "getitem" in str(node.target):
            values[node] = given[0][given[1]]
        else:
            values[node] = _lower_node(builder, node, given, named)
    return [to_torch(array) for array in engine(program, *map(to_numpy, args))]


def _lower_node(builder: Builder, node: torch.fx.Node, given: Any, named: Any) -> Any:
    promised = [
        tensor_type(t) if isinstance(t, torch.Tensor) else None for t in as_list(node.meta["val"])
    ]
    found = registry.find_lowering(str(node.target))
    assert found is not None, f"no lowering for {node.target}"
    result = found(Context(builder, promised, input_order=MemoryOrder.WHOLE), *given, **named)
    for value, expected in zip(as_list(result), promised, strict=True):
        if isinstance(value, Value):
            assert value.type == expected, f"{node.target}: {value.type} is not {expected}"
    return result
