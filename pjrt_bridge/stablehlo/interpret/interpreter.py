"""StableHLO's reference interpreter: slow, exact, sharing no code with any plugin.

It is an oracle for tests and for conformance checks. The bindings hand arrays over as dense
attributes, but read back only some element types and terminate the process on complex ones. So a
wrapper function goes around the program that keeps such types from the border: complex values
cross as their two parts, small floats as bits, sub-byte values widened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import SignatureMismatch
from pjrt_bridge.stablehlo import bindings, composites, guarding, modules
from pjrt_bridge.stablehlo.builder import constants
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge.stablehlo.interpret import channels, interpretable
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import Signature, TensorType

_INNER = "main.evaluated"


def evaluate(program: Program, *arrays: Array) -> tuple[Array, ...]:
    """Run a program in the reference interpreter.

    Args:
        program: a program with static shapes.
        arrays: one host array per parameter, of its shape and dtype.

    Returns:
        One host array per result, in `DType.numpy`. NaN payloads survive.

    Raises:
        SignatureMismatch: another number of arrays, other shapes or dtypes.
        ProgramError: an operation that the interpreter does not know, or its own check failed.
    """
    return _evaluate(program, [[arrays]], parallel=False)[0][0]


def evaluate_parallel(
    program: Program, arrays: Sequence[Sequence[Sequence[Array]]]
) -> list[list[tuple[Array, ...]]]:
    """Run a program in several processes, which collective operations connect.

    The processes of the interpreter are threads. One that waits for longer than three seconds for
    another to reach the same collective operation ends everything.

    Args:
        program: as for `evaluate`; parameters are what one process gets.
        arrays: for each replica (rows) and partition (columns) one array per parameter.

    Returns:
        For each replica and partition one array per result.

    Raises:
        SignatureMismatch, ProgramError: as `evaluate`; groups that name no processes.
    """
    return _evaluate(program, arrays, parallel=True)


def check(program: Program, *, processes: int | None = None, here: bool = True) -> None:
    """Refuse what the interpreter cannot run, without running it.

    Args:
        program: with static shapes.
        processes: as many as `evaluate_parallel` will start; None for `evaluate`.
        here: on this machine, which needs a thread for each process.

    Raises:
        ProgramError: it names the operation, or the type in the signature.
    """
    _ = program.signature
    module = _module(program)
    interpretable.check(modules.operations(module), processes=processes, here=here)


def has_collectives(program: Program) -> bool:
    """Whether only `evaluate_parallel` knows the operations of a program."""
    module = _module(program)
    return interpretable.has_collectives(modules.operations(module))


def _module(program: Program) -> Any:
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    composites.inline(module)
    guarding.guard(module)
    return module


def _evaluate(
    program: Program, grid: Sequence[Sequence[Sequence[Array]]], *, parallel: bool
) -> list[list[tuple[Array, ...]]]:
    signature = program.signature
    processes = [[np.asarray(array) for array in arrays] for row in grid for arrays in row]
    for arrays in processes:
        _check(signature, arrays)
    module = _module(program)
    operations = modules.operations(module)
    interpretable.check(operations, processes=len(processes) if parallel else None)
    if parallel:
        channels.assign_channels(operations)
    wrapper = _Wrapper(module, signature)
    for operation in operations:
        if operation.name == "stablehlo.scatter":
            wrapper.copy_inputs(operation)
    wrapper.emit([len(row) for row in grid] if parallel else None)
    arguments = [
        constants.dense(part, dtypes.from_numpy(part.dtype), wrapper.tensor(part.shape, dtype))
        for arrays in processes
        for array in arrays
        for part, dtype in _parts(array)
    ]
    outputs = iter(bindings.interpret(module, arguments, threads=parallel))
    return [
        [tuple(_join(result.type, outputs) for result in signature.results) for _ in row]
        for row in grid
    ]


def _check(signature: Signature, arrays: Sequence[Array]) -> None:
    if len(arrays) != len(signature.parameters):
        raise SignatureMismatch(
            f"evaluate: the program has {len(signature.parameters)} parameters, "
            f"found {len(arrays)} arrays"
        )
    for index, (parameter, array) in enumerate(zip(signature.parameters, arrays, strict=True)):
        found = TensorType(array.shape, dtypes.from_numpy(array.dtype))
        if found != parameter.type:
            raise SignatureMismatch(
                f"evaluate: parameter {index} is {parameter.type}, found an array {found}"
            )


def _parts(array: Array) -> list[tuple[Array, DType]]:
    """The arrays that stand for one at the interpreter's border, with their element types."""
    if np.iscomplexobj(array):
        return [(part, dtypes.from_numpy(part.dtype)) for part in (array.real, array.imag)]
    return [(array, dtypes.from_numpy(array.dtype))]


def _encoding(dtype: DType) -> list[tuple[str, DType]]:
    """The operations that bring a result over the border, and the types that it then has."""
    if dtype.is_complex:
        part = dtypes.of("float32" if dtype.bits == 64 else "float64")
        return [("stablehlo.real", part), ("stablehlo.imag", part)]
    if dtype.is_integer and dtype.bits < 8:
        return [("stablehlo.convert", dtypes.of("int8" if dtype.is_signed_integer else "uint8"))]
    if dtype.is_float and dtype.bits < 8:
        return [("stablehlo.convert", dtypes.of("float32"))]
    if dtype.is_float and dtype.name not in ("float16", "float32", "float64"):
        return [("stablehlo.bitcast_convert", dtypes.of(f"uint{dtype.bits}"))]
    return []


def _join(result: TensorType, outputs: Any) -> Array:
    dtype = result.dtype
    encoding = _encoding(dtype)
    first = np.array(next(outputs))
    if dtype.is_complex:
        joined = np.empty(result.shape, dtype.numpy)
        # Assigned apart: `real + 1j * imag` would turn infinities into NaN.
        joined.real, joined.imag = first, np.array(next(outputs))
        return joined
    if encoding and encoding[0][0] == "stablehlo.bitcast_convert":
        return first.view(dtype.numpy)
    return first.astype(dtype.numpy)


class _Wrapper:
    """A new `main` that decodes its parameters, calls the old one and encodes its results."""

    def __init__(self, module: Any, signature: Signature) -> None:
        self._ir = bindings.load().ir
        self._module = module
        self._signature = signature
        self._context = module.context
        self._unknown = self._ir.Location.unknown(self._context)

    def tensor(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """The MLIR tensor type."""
        element = self._ir.Type.parse(dtype.stablehlo, self._context)
        return self._ir.RankedTensorType.get(shape, element, loc=self._unknown)

    def copy_inputs(self, scatter: Any) -> None:
        """Give a scatter copies of its inputs: the interpreter overwrites them."""
        for index in range((len(scatter.operands) - 1) // 2):
            value = scatter.operands[index]
            ip = self._ir.InsertionPoint(scatter)
            copy = self._operation("stablehlo.reshape", ip, [value.type], [value])
            scatter.operands[index] = copy.result

    def emit(self, grid: Sequence[int] | None) -> None:
        """Put the wrapper in place of `main`.

        Args:
            grid: partitions of each replica of a parallel program; None for a single process.
        """
        ir = self._ir
        inner = modules.find_main(self._module).operation
        inner.attributes["sym_name"] = ir.StringAttr.get(_INNER, self._context)
        processes = 1 if grid is None else sum(grid)
        parameters = self._signature.parameters * processes
        inputs = []
        for parameter in parameters:
            dtype = parameter.type.dtype
            borders = [part for _, part in _encoding(dtype)] if dtype.is_complex else [dtype]
            inputs += [self.tensor(parameter.type.shape, border) for border in borders]
        top = ir.InsertionPoint(self._module.body)
        main = self._operation(
            "func.func",
            top,
            attributes={
                "sym_name": ir.StringAttr.get("main", self._context),
                "function_type": ir.TypeAttr.get(
                    ir.FunctionType.get(inputs, [], self._context), self._context
                ),
            },
            regions=1,
        )
        block = main.regions[0].blocks.append(*inputs, arg_locs=[self._unknown] * len(inputs))
        ip = ir.InsertionPoint(block)
        arguments = iter(block.arguments)
        decoded = [self._decode(ip, parameter.type, arguments) for parameter in parameters]
        types = self._signature.results * processes
        results = [self.tensor(result.type.shape, result.type.dtype) for result in types]
        call = self._call(ip, results, decoded, grid)
        returned = []
        for result, value in zip(types, call.results, strict=True):
            returned += self._encode(ip, result.type, value)
        self._operation("func.return", ip, operands=returned)
        signature = ir.FunctionType.get(inputs, [v.type for v in returned], self._context)
        main.attributes["function_type"] = ir.TypeAttr.get(signature, self._context)

    def _call(self, ip: Any, results: list[Any], values: list[Any], grid: Any) -> Any:
        ir = self._ir
        symbol = ir.FlatSymbolRefAttr.get(_INNER, self._context)
        if grid is None:
            return self._operation("func.call", ip, results, values, {"callee": symbol})
        bindings.add_interpreter_dialect(self._context)
        rows = [ir.ArrayAttr.get([symbol] * size, self._context) for size in grid]
        programs = {"programs": ir.ArrayAttr.get(rows, self._context)}
        return self._operation("interpreter.run_parallel", ip, results, values, programs)

    def _decode(self, ip: Any, kind: TensorType, arguments: Any) -> Any:
        if not kind.dtype.is_complex:
            return next(arguments)
        parts = [next(arguments), next(arguments)]
        whole = self.tensor(kind.shape, kind.dtype)
        return self._operation("stablehlo.complex", ip, [whole], parts).result

    def _encode(self, ip: Any, kind: TensorType, value: Any) -> list[Any]:
        encoded = [
            self._operation(op, ip, [self.tensor(kind.shape, border)], [value]).result
            for op, border in _encoding(kind.dtype)
        ]
        return encoded or [value]

    def _operation(
        self,
        name: str,
        ip: Any,
        results: Sequence[Any] = (),
        operands: Sequence[Any] = (),
        attributes: dict[str, Any] | None = None,
        regions: int = 0,
    ) -> Any:
        return self._ir.Operation.create(
            name, results, operands, attributes, regions=regions, loc=self._unknown, ip=ip
        )
