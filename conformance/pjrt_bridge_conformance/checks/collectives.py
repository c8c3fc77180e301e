"""Collective operations between two replicas, and between two partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import CompileOptions
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import equal, same
from pjrt_bridge_conformance.numerics import EXACT, compare, whole

COLLECTIVES = Group("collectives")

_BOTH = "dense<[[0, 1]]> : tensor<1x2xi64>"
_APART = "dense<[[0], [1]]> : tensor<2x1xi64>"
_PAIRS = "dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>"
_PARTITIONS = ", channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"


def _program(argument: str, result: str, operation: str) -> str:
    return (
        f"module {{ func.func @main(%a: tensor<{argument}>) -> tensor<{result}> "
        f"{{ {operation} return %0 : tensor<{result}> }} }}"
    )


def _reducer(op: str, element: str) -> str:
    return (
        f"({{ ^bb0(%x: tensor<{element}>, %y: tensor<{element}>): "
        f"%s = stablehlo.{op} %x, %y : tensor<{element}> "
        f"stablehlo.return %s : tensor<{element}> }})"
    )


def _run(
    context: Context,
    text: str,
    arrays: Sequence[Array],
    expected: Sequence[Array],
    options: CompileOptions | None = None,
) -> None:
    """Run a program on two devices, one array each, and compare."""
    client = context.pair
    with client.compile(text, options=options or CompileOptions(num_replicas=2)) as executable:
        arguments = [
            [client.put(array, device)]
            for array, device in zip(arrays, executable.devices, strict=True)
        ]
        results = executable.execute_sharded(arguments)
        equal(len(results), 2, "lists of results")
        for number, ((result,), wanted) in enumerate(zip(results, expected, strict=True)):
            compare(result.to_numpy(), wanted, EXACT, f"device {number}")


def _arrays(name: str, *shape: int) -> list[Array]:
    return [whole(dtypes.of(name), *shape, seed=seed) for seed in range(2)]


_REDUCERS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
_REDUCED = [
    *(f"{op}.{name}" for op in _REDUCERS for name in ("float32", "int32")),
    *(f"add.{name}" for name in ("float64", "bfloat16", "float16", "int64", "uint8", "int8")),
    "add.uint32",
    "maximum.bfloat16",
]


def _all_reduce(attributes: str, op: str = "add", element: str = "f32") -> str:
    """A program that reduces five elements of each device."""
    kind = f"5x{element}"
    return _program(
        kind,
        kind,
        f'%0 = "stablehlo.all_reduce"(%a) {_reducer(op, element)} '
        f"{{{attributes}}} : (tensor<{kind}>) -> tensor<{kind}>",
    )


@COLLECTIVES.each(_REDUCED)
def all_reduce(context: Context, case: str) -> None:
    """Every replica gets the sum (product, greatest, least) of all."""
    op, name = case.split(".")
    element = dtypes.of(name).stablehlo
    x, y = _arrays(name, 5)
    text = _all_reduce(f"replica_groups = {_BOTH}", op, element)
    expected = np.asarray(_REDUCERS[op](x, y), x.dtype)
    _run(context, text, [x, y], [expected, expected])


@COLLECTIVES.check
def all_reduce_alone(context: Context) -> None:
    """A group of one replica reduces nothing."""
    x, y = _arrays("float32", 5)
    _run(context, _all_reduce(f"replica_groups = {_APART}"), [x, y], [x, y])


@COLLECTIVES.check
def all_reduce_partitions(context: Context) -> None:
    """Partitions reduce among themselves through a channel."""
    x, y = _arrays("float32", 5)
    text = _all_reduce(f"replica_groups = {_BOTH}{_PARTITIONS}, use_global_device_ids")
    options = CompileOptions(num_partitions=2, use_spmd_partitioning=True)
    _run(context, text, [x, y], [x + y, x + y], options)


@COLLECTIVES.each([0, 1])
def all_gather(context: Context, dim: int) -> None:
    """Every replica gets the arrays of all, one after the other."""
    x, y = _arrays("float32", 2, 3)
    result = "4x3xf32" if dim == 0 else "2x6xf32"
    text = _program(
        "2x3xf32",
        result,
        f'%0 = "stablehlo.all_gather"(%a) {{all_gather_dim = {dim} : i64, '
        f"replica_groups = {_BOTH}}} : (tensor<2x3xf32>) -> tensor<{result}>",
    )
    joined = np.concatenate([x, y], dim)
    _run(context, text, [x, y], [joined, joined])


@COLLECTIVES.each([0, 1])
def reduce_scatter(context: Context, dim: int) -> None:
    """Every replica gets its part of the sum."""
    x, y = _arrays("float32", 4, 6)
    result = "2x6xf32" if dim == 0 else "4x3xf32"
    text = _program(
        "4x6xf32",
        result,
        f'%0 = "stablehlo.reduce_scatter"(%a) {_reducer("add", "f32")} '
        f"{{scatter_dimension = {dim} : i64, replica_groups = {_BOTH}}} : "
        f"(tensor<4x6xf32>) -> tensor<{result}>",
    )
    _run(context, text, [x, y], np.split(x + y, 2, dim))


@COLLECTIVES.check
def all_to_all(context: Context) -> None:
    """Every replica gets one part of each array."""
    x, y = _arrays("float32", 4, 6)
    text = _program(
        "4x6xf32",
        "2x12xf32",
        '%0 = "stablehlo.all_to_all"(%a) {split_dimension = 0 : i64, concat_dimension = 1 : i64, '
        f"split_count = 2 : i64, replica_groups = {_BOTH}}} : "
        "(tensor<4x6xf32>) -> tensor<2x12xf32>",
    )
    parts = [np.split(array, 2) for array in (x, y)]
    expected = [np.concatenate([parts[0][n], parts[1][n]], 1) for n in range(2)]
    _run(context, text, [x, y], expected)


@COLLECTIVES.check
def collective_permute(context: Context) -> None:
    """Replicas exchange their arrays."""
    x, y = _arrays("float32", 5)
    text = _program(
        "5xf32",
        "5xf32",
        f'%0 = "stablehlo.collective_permute"(%a) {{source_target_pairs = {_PAIRS}}} : '
        "(tensor<5xf32>) -> tensor<5xf32>",
    )
    _run(context, text, [x, y], [y, x])


@COLLECTIVES.check
def collective_permute_one_way(context: Context) -> None:
    """A replica to which nothing is sent gets zeros."""
    x, y = _arrays("float32", 5)
    text = _program(
        "5xf32",
        "5xf32",
        '%0 = "stablehlo.collective_permute"(%a) {source_target_pairs = '
        "dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<5xf32>) -> tensor<5xf32>",
    )
    _run(context, text, [x, y], [np.zeros_like(x), x])


@COLLECTIVES.check
def collective_broadcast(context: Context) -> None:
    """The first replica of a group sends its array to all."""
    x, y = _arrays("float32", 5)
    text = _program(
        "5xf32",
        "5xf32",
        '%0 = "stablehlo.collective_broadcast"(%a) {replica_groups = '
        "dense<[[1, 0]]> : tensor<1x2xi64>} : (tensor<5xf32>) -> tensor<5xf32>",
    )
    _run(context, text, [x, y], [y, y])


@COLLECTIVES.each(["replica_id", "partition_id"])
def own_number(context: Context, op: str) -> None:
    """Every device knows its number."""
    text = _program(
        "ui32",
        "ui32",
        f"%i = stablehlo.{op} : tensor<ui32> %0 = stablehlo.add %a, %i : tensor<ui32>",
    )
    replicas, partitions = (2, 1) if op == "replica_id" else (1, 2)
    options = CompileOptions(num_replicas=replicas, num_partitions=partitions)
    ten = np.array(10, np.uint32)
    _run(context, text, [ten, ten], [ten, ten + np.uint32(1)], options)


@COLLECTIVES.check
def many_in_a_row(context: Context) -> None:
    """A program with many collective operations keeps them in order, call after call."""
    steps = " ".join(
        f'%s{n} = "stablehlo.collective_permute"(%{"a" if n == 0 else f"s{n - 1}"}) '
        f"{{source_target_pairs = {_PAIRS}}} : (tensor<5xf32>) -> tensor<5xf32>"
        for n in range(20)
    )
    text = _program("5xf32", "5xf32", f"{steps} %0 = stablehlo.add %s19, %s18 : tensor<5xf32>")
    client = context.pair
    x, y = _arrays("float32", 5)
    with client.compile(text, options=CompileOptions(num_replicas=2)) as executable:
        arguments = [
            [client.put(array, device)]
            for array, device in zip((x, y), executable.devices, strict=True)
        ]
        runs = [executable.execute_sharded(arguments) for _ in range(10)]
        for results in runs:
            for (result,) in results:
                same(result.to_numpy(), x + y, "a sum of both")
