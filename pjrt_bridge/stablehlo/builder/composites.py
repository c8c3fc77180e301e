"""Composites: operations whose name a compiler may know, with a decomposition for all others."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.stablehlo import linking
from pjrt_bridge.stablehlo.builder.calls import CallOps
from pjrt_bridge.stablehlo.builder.values import Body, Value, as_tuple
from pjrt_bridge.stablehlo.composites import OPERATION, Composite
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import checked_methods

_UNNAMED = "decomposition"


@checked_methods
class CompositeOps(CallOps):
    """Composites."""

    def __init__(self, name: str, *, excess_precision: bool = False) -> None:
        super().__init__(name, excess_precision=excess_precision)
        # The symbol of each function, by its text without a name.
        self._decompositions: dict[str, str] = {}

    def composite(
        self, composite: Composite, operands: Sequence[Value], decomposition: Body
    ) -> tuple[Value, ...]:
        """An operation that its decomposition computes where a compiler does not know its name.

        Args:
            composite: name, attributes and version.
            operands: its operands.
            decomposition: writes the same operation with others, from values of the operands'
                types; it uses no values from outside. It becomes a private function of the program;
                equal ones become one.

        Raises:
            ProgramError: a value from outside is used, or the operation is malformed; nothing was
                emitted.
        """
        symbol, results = self._decomposition(composite, operands, decomposition)
        attributes = composite.written(self._context, symbol)
        return self._emit(OPERATION, operands, attributes, results)

    def _decomposition(
        self, composite: Composite, operands: Sequence[Value], body: Body
    ) -> tuple[str, list[TensorType]]:
        """The symbol of a function with the body, and the types of its results."""
        ir = self._ir
        for index, operand in enumerate(operands):
            self._handle(OPERATION, index, operand)
        types = [operand.type for operand in operands]
        function, block = self._function(types, _UNNAMED, False, visibility="private")
        with self._inside(block, types, ()) as arguments:
            values = as_tuple(body(arguments))
            handles = [self._handle(composite.name, i, value) for i, value in enumerate(values)]
            ir.Operation.create("func.return", operands=handles, loc=self._unknown, ip=self._ip)
        results = [value.type for value in values]
        signature = [[self._mlir_type(item) for item in part] for part in (types, results)]
        kind = ir.FunctionType.get(*signature, self._context)
        function.attributes["function_type"] = ir.TypeAttr.get(kind, self._context)
        text = str(function)
        symbol = self._decompositions.get(text)
        if symbol is None:
            function.attributes["sym_name"] = self._str(f"{composite.name}.decomposition")
            ir.InsertionPoint(self._module.body).insert(function)
            # The table appends a number to a name that the module has already.
            symbol = ir.SymbolTable(self._module.operation).insert(function).value
            self._decompositions[text] = symbol
        return symbol, results

    def _drop_uncalled(self) -> None:
        """Remove functions that only what was dropped used."""
        if self._called or self._decompositions:
            linking.drop_unused(self._module)
