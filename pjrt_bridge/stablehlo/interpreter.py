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
from pjrt_bridge.errors import ProgramError, SignatureMismatch
from pjrt_bridge.stablehlo import bindings, constants
from pjrt_bridge.stablehlo.constants import Array
from pjrt_bridge.stablehlo.program import Program
from pjrt_bridge.stablehlo.types import Signature, TensorType

_INNER = "main.evaluated"

_OPERATIONS = """
    abs add after_all and atan2 bitcast_convert broadcast_in_dim case cbrt ceil clamp compare
    complex concatenate constant convert convolution cosine count_leading_zeros divide dot_general
    dynamic_slice dynamic_update_slice exponential exponential_minus_one fft floor gather
    get_dimension_size get_tuple_element if imag iota is_finite log log_plus_one logistic maximum
    minimum multiply negate not optimization_barrier or pad popcnt power real reduce
    reduce_precision reduce_window remainder reshape return reverse round_nearest_afz
    round_nearest_even rsqrt scatter select select_and_scatter shift_left shift_right_arithmetic
    shift_right_logical sign sine slice sort sqrt subtract tan tanh transpose triangular_solve tuple
    while xor
"""
# The interpreter ends the process at any operation that is not among these.
_KNOWN = frozenset(_OPERATIONS.split())


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
    signature = program.signature
    arrays = tuple(np.asarray(array) for array in arrays)
    _check(signature, arrays)
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    operations = bindings.operations(module)
    for operation in operations:
        _check_operation(operation)
    wrapper = _Wrapper(module, signature)
    for operation in operations:
        if operation.name == "stablehlo.scatter":
            wrapper.copy_inputs(operation)
    wrapper.emit()
    arguments = [
        constants.dense(part, dtypes.from_numpy(part.dtype), wrapper.tensor(part.shape, dtype))
        for array in arrays
        for part, dtype in _parts(array)
    ]
    outputs = iter(bindings.interpret(module, arguments))
    return tuple(_join(result.type, outputs) for result in signature.results)


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


def _check_operation(operation: Any) -> None:
    """Refuse what ends the process in the interpreter, or what it computes wrongly."""
    dialect, _, op = operation.name.partition(".")
    if dialect in ("func", "builtin"):
        return
    if dialect != "stablehlo" or op not in _KNOWN:
        raise ProgramError(f"interpreter: {operation.name} is not known to it")
    defect = _DEFECTS[op](operation) if op in _DEFECTS else None
    if defect is not None:
        types = ", ".join(str(operand.type) for operand in operation.operands)
        raise ProgramError(f"interpreter: {operation.name} {defect}; found {types}")


def _shape(value: Any) -> list[int]:
    return list(bindings.load().ir.ShapedType(value.type).shape)


def _compare_defect(operation: Any) -> str | None:
    attributes = operation.attributes
    total = "compare_type" in attributes and "TOTALORDER" in str(attributes["compare_type"])
    return "ignores TOTALORDER" if total else None


def _convolution_defect(operation: Any) -> str | None:
    attribute = operation.attributes["dimension_numbers"]
    numbers = bindings.load().stablehlo.ConvDimensionNumbers(attribute)
    if numbers.output_feature_dimension >= numbers.output_batch_dimension:
        return None
    return "ends the process where the output's feature dimension comes before its batch dimension"


def _dot_defect(operation: Any) -> str | None:
    attribute = operation.attributes["dot_dimension_numbers"]
    numbers = bindings.load().stablehlo.DotDimensionNumbers(attribute)
    shape = _shape(operation.operands[0])
    empty = any(shape[dim] == 0 for dim in numbers.lhs_contracting_dimensions)
    return "ends the process on a sum over nothing" if empty else None


def _fft_defect(operation: Any) -> str | None:
    double = all("f64" in str(operand.type) for operand in operation.operands)
    return None if double else "ends the process in single precision"


def _triangular_solve_defect(operation: Any) -> str | None:
    return "ends the process on batches" if len(_shape(operation.operands[0])) > 2 else None


_DEFECTS = {
    "compare": _compare_defect,
    "convolution": _convolution_defect,
    "dot_general": _dot_defect,
    "fft": _fft_defect,
    "triangular_solve": _triangular_solve_defect,
}


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

    def emit(self) -> None:
        """Put the wrapper in place of `main`."""
        ir = self._ir
        inner = bindings.find_main(self._module).operation
        inner.attributes["sym_name"] = ir.StringAttr.get(_INNER, self._context)
        inputs = []
        for parameter in self._signature.parameters:
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
        decoded = [self._decode(ip, p.type, arguments) for p in self._signature.parameters]
        results = [self.tensor(r.type.shape, r.type.dtype) for r in self._signature.results]
        callee = {"callee": ir.FlatSymbolRefAttr.get(_INNER, self._context)}
        call = self._operation("func.call", ip, results, decoded, callee)
        returned = []
        for result, value in zip(self._signature.results, call.results, strict=True):
            returned += self._encode(ip, result.type, value)
        self._operation("func.return", ip, operands=returned)
        signature = ir.FunctionType.get(inputs, [v.type for v in returned], self._context)
        main.attributes["function_type"] = ir.TypeAttr.get(signature, self._context)

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
