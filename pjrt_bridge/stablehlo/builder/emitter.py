"""The base of the Builder: creates all operations, regions and functions, and tracks scopes.

The op methods are in the modules beside this one (elementwise, chlo, shaping, structured,
numerical); each is a class over `Emitter`, and `Builder` joins them. An operation is verified when
it is created, so an error surfaces at the call that caused it.

Regions (the bodies of reduce, while, ...) are written before their operation, because what they
return decides its type, and moved into it; a body that raises leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ProgramError, UnsupportedDtype
from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.builder import constants
from pjrt_bridge.stablehlo.builder.values import (
    Body,
    Region,
    Scope,
    Value,
    as_tuple,
)
from pjrt_bridge.stablehlo.precision import Precision, Precisions
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import wrong


class Emitter:
    """An MLIR context, the function that is being written, and where the next operation goes."""

    def __init__(self, name: str, *, excess_precision: bool = False) -> None:
        self._excess_precision = excess_precision
        self._ir = bindings.load().ir
        self._context = bindings.new_context()
        self._unknown = self._ir.Location.unknown(self._context)
        self._loc = self._unknown
        self._i64 = self._ir.IntegerType.get_signless(64, self._context)
        self._elements: dict[DType, Any] = {}
        self._mlir_types: dict[TensorType, Any] = {}
        self._tensor_types: dict[Any, TensorType] = {}
        self._stores: dict[TensorType, str] = {}
        self._module = self._ir.Module.create(self._unknown)
        if name != "main":
            self._module.operation.attributes["sym_name"] = self._str(name)
        # By the number of a handle, which the value's origin keeps, and the permutation.
        self._transposed: dict[tuple[int, tuple[int, ...]], Value] = {}
        self._scopes: tuple[Scope, ...] = ()
        # A scope, and the operations that were created in it.
        self._created: tuple[Scope | None, list[Any]] = (None, [])
        self._ip: Any = None
        self._used_chlo = False
        self._precisions: Precisions | None = None
        self._stated: Precision | None = None
        self.took_precisions = False
        self.has_effects = False
        self._finished = False

    # -- attributes and types ---------------------------------------------------------------

    def _str(self, text: str) -> Any:
        try:
            return self._ir.StringAttr.get(text, self._context)
        except TypeError:
            raise ProgramError(wrong("text of a program", text, "text that UTF-8 has")) from None

    def _int(self, value: int) -> Any:
        return self._ir.IntegerAttr.get(self._i64, int(value))

    def _bool(self, value: bool) -> Any:
        return self._ir.BoolAttr.get(bool(value), self._context)

    def _dims(self, values: Sequence[int]) -> Any:
        return self._ir.DenseI64ArrayAttr.get([int(v) for v in values], self._context)

    def _padding(self, padding: Sequence[tuple[int, int]]) -> Any:
        array = np.asarray(padding, np.int64).reshape(len(padding), 2)
        tensor = self._ir.RankedTensorType.get(array.shape, self._i64, loc=self._unknown)
        return self._ir.DenseElementsAttr.get(array, type=tensor, context=self._context)

    def _element(self, dtype: DType) -> Any:
        found = self._elements.get(dtype)
        if found is None:
            found = self._elements[dtype] = self._ir.Type.parse(dtype.stablehlo, self._context)
        return found

    def _mlir_type(self, tensor: TensorType) -> Any:
        found = self._mlir_types.get(tensor)
        if found is None:
            found = self._ir.RankedTensorType.get(
                tensor.shape, self._element(tensor.dtype), loc=self._unknown
            )
            self._mlir_types[tensor] = found
            self._tensor_types[found] = tensor
        return found

    def _tensor_type(self, op: str, mlir_type: Any) -> TensorType:
        found = self._tensor_types.get(mlir_type)
        if found is None:
            try:
                dtype = dtypes.from_stablehlo(str(mlir_type.element_type))
            except UnsupportedDtype as error:
                raise ProgramError(f"{op}: result type {mlir_type}: {error}") from None
            found = self._tensor_types[mlir_type] = TensorType(tuple(mlir_type.shape), dtype)
        return found

    def _dense(self, value: ArrayLike, dtype: DType | str | None) -> tuple[Any, TensorType]:
        array, element = constants.as_array(value, dtype)
        tensor = TensorType(array.shape, element)
        return constants.dense(array, element, self._mlir_type(tensor)), tensor

    # -- operations -------------------------------------------------------------------------

    def _emit(
        self,
        op: str,
        operands: Sequence[Value],
        attributes: Mapping[str, Any] | None = None,
        results: Sequence[TensorType] | None = None,
        blocks: Sequence[Any] = (),
    ) -> tuple[Value, ...]:
        """Create and verify one operation.

        Args:
            op: full name, `stablehlo.add`.
            operands: its operands.
            attributes: its attributes.
            results: its result types; None: the bindings infer them.
            blocks: blocks to move into its regions, one each.

        Raises:
            ProgramError: the operation is malformed; nothing was emitted.
        """
        if self._finished:
            raise ProgramError(f"{op}: this builder is finished; make a new one")
        handles = [self._handle(op, i, operand) for i, operand in enumerate(operands)]
        types = None if results is None else [self._mlir_type(result) for result in results]
        operation = None
        try:
            operation = self._ir.Operation.create(
                op,
                types,
                handles,
                attributes,
                regions=len(blocks),
                loc=self._loc,
                ip=self._ip,
                infer_type=types is None,
            )
            for region, block in zip(operation.regions, blocks, strict=True):
                block.append_to(region)
            operation.verify()
        except self._ir.MLIRError as error:
            if operation is not None:
                operation.erase()
            found = ", ".join(str(operand.type) for operand in operands)
            raise ProgramError(f"{op}: {bindings.explain(error)} (operands: {found})") from None
        made = operation.results
        scope = self._scopes[-1]
        if scope is self._created[0]:
            self._created[1].append(operation)
        if results is None:
            results = [self._tensor_type(op, handle.type) for handle in made]
        return tuple(
            Value(result, handle, scope) for result, handle in zip(results, made, strict=True)
        )

    def _emit_one(
        self,
        op: str,
        operands: Sequence[Value],
        attributes: Mapping[str, Any] | None = None,
        result: TensorType | None = None,
    ) -> Value:
        return self._emit(op, operands, attributes, None if result is None else (result,))[0]

    def _handle(self, op: str, index: int, operand: Value) -> Any:
        if not isinstance(operand, Value):
            raise ProgramError(
                f"{op}: operand {index} must be a Value of this builder, "
                f"found {type(operand).__name__}"
            )
        if operand._scope not in self._scopes:
            raise ProgramError(
                f"{op}: operand {index} ({operand.type}) is out of scope: it belongs to another "
                "builder, or to a region or scratch function that was left"
            )
        return operand._handle

    # -- regions ----------------------------------------------------------------------------

    def _function(
        self,
        types: Sequence[TensorType],
        name: str,
        ip: Any,
        *,
        results: Sequence[TensorType] = (),
        visibility: str = "public",
    ) -> tuple[Any, Any]:
        """A function and its entry block; `ip=False` leaves it detached."""
        ir = self._ir
        inputs = [self._mlir_type(tensor) for tensor in types]
        outputs = [self._mlir_type(tensor) for tensor in results]
        attributes = {
            "sym_name": self._str(name),
            "sym_visibility": self._str(visibility),
            "function_type": ir.TypeAttr.get(
                ir.FunctionType.get(inputs, outputs, self._context), self._context
            ),
        }
        function = ir.Operation.create(
            "func.func", attributes=attributes, regions=1, loc=self._unknown, ip=ip
        )
        block = function.regions[0].blocks.append(*inputs, arg_locs=[self._unknown] * len(inputs))
        return function, block

    def _enter(
        self, block: Any, types: Sequence[TensorType], outer: tuple[Scope, ...]
    ) -> tuple[Value, ...]:
        """From now on emit into the block; gives its arguments."""
        scope = Scope(self._module)
        self._ip, self._scopes = self._ir.InsertionPoint(block), (*outer, scope)
        return tuple(
            Value(tensor, handle, scope)
            for tensor, handle in zip(types, block.arguments, strict=True)
        )

    @contextmanager
    def _inside(
        self, block: Any, types: Sequence[TensorType], outer: tuple[Scope, ...]
    ) -> Iterator[tuple[Value, ...]]:
        """Emit into the block while this lasts; `outer` scopes stay visible."""
        saved = self._ip, self._scopes
        try:
            yield self._enter(block, types, outer)
        finally:
            self._ip, self._scopes = saved

    def _emit_with(
        self,
        op: str,
        operands: Sequence[Value],
        regions: Sequence[Region],
        attributes: Mapping[str, Any] | None = None,
        results: Sequence[TensorType] | None = None,
    ) -> tuple[Value, ...]:
        """Create and verify one operation with regions.

        Args:
            op: full name, `stablehlo.reduce`.
            operands: its operands.
            regions: per region the types of its arguments, and the body.
            attributes: its attributes.
            results: its result types; None: what the first region returns.

        Raises:
            ProgramError: the operation is malformed; nothing was emitted.
        """
        # The bodies are written under a placeholder just before the operation, so that values from
        # outside dominate them; it is never verified, and a body that raises goes away with it.
        placeholder = self._ir.Operation.create(
            "stablehlo.case", regions=len(regions), loc=self._loc, ip=self._ip
        )
        try:
            returned = [
                self._write(op, region, types, body)
                for region, (types, body) in zip(placeholder.regions, regions, strict=True)
            ]
            blocks = [region.blocks[0] for region in placeholder.regions]
            types = returned[0] if results is None else results
            return self._emit(op, operands, attributes, types, blocks)
        finally:
            placeholder.erase()

    def _write(
        self, op: str, region: Any, types: Sequence[TensorType], body: Body
    ) -> tuple[TensorType, ...]:
        """Write a body into an empty region; gives the types that it returns."""
        inputs = [self._mlir_type(tensor) for tensor in types]
        block = region.blocks.append(*inputs, arg_locs=[self._unknown] * len(inputs))
        with self._inside(block, types, self._scopes) as arguments:
            returned = as_tuple(body(arguments))
            handles = [self._handle(f"{op} body", i, value) for i, value in enumerate(returned)]
            self._ir.Operation.create(
                "stablehlo.return", operands=handles, loc=self._loc, ip=self._ip
            )
        return tuple(value.type for value in returned)

    @contextmanager
    def scratch(self, types: Sequence[TensorType] = ()) -> Iterator[tuple[Value, ...]]:
        """Emit into a throw-away function with parameters of the given types.

        Everything emitted inside is dropped on exit and its values cannot be used any more;
        values from outside cannot be used inside.
        """
        used_chlo, loc = self._used_chlo, self._loc
        _, block = self._function(types, "scratch", ip=False)
        try:
            with self._inside(block, types, ()) as parameters:
                yield parameters
        finally:
            self._used_chlo, self._loc = used_chlo, loc

    @contextmanager
    def location(self, file: str, line: int, name: str = "") -> Iterator[None]:
        """Operations emitted inside carry this source position.

        Args:
            file: path of the source file.
            line: line, from 1.
            name: what the source calls it, for example a module path.
        """
        saved = self._loc
        position = self._ir.Location.file(file, line, 0, self._context)
        self._loc = self._ir.Location.name(name, position, self._context) if name else position
        try:
            yield
        finally:
            self._loc = saved
