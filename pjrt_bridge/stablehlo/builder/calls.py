"""Calls of other programs, which become functions of the program that is written."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import linking
from pjrt_bridge.stablehlo.builder.rewriting import RewriteOps, Round
from pjrt_bridge.stablehlo.builder.values import Value, check_length
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.wrong_arguments import checked_methods


@checked_methods
class CallOps(RewriteOps):
    """Calls of programs."""

    def __init__(self, name: str, *, excess_precision: bool = False) -> None:
        super().__init__(name, excess_precision=excess_precision)
        self._called: dict[bytes, str] = {}

    def call(
        self,
        program: Program,
        operands: Sequence[Value],
        rewrites: Sequence[Round] = (),
    ) -> tuple[Value, ...]:
        """The results of a program for these operands.

        Its functions become private functions of this program, once for all calls of it; compilers
        inline them. What it says of donation and layouts does not count.

        Args:
            program: for one device.
            operands: a value for each of its parameters.
            rewrites: what takes the place of operations in the program's functions; the same for
                all calls of a program.

        Raises:
            ProgramError: another number of operands or other types than its parameters have, a
                program over a mesh, or one with results of bounded sizes.
        """
        signature = program.signature
        check_length(f"call {program.name!r}", "a program", operands, len(signature.parameters))
        for index, (operand, parameter) in enumerate(
            zip(operands, signature.parameters, strict=True)
        ):
            if operand.type != parameter.type:
                raise ProgramError(
                    f"call {program.name!r}: operand {index}: found {operand.type}, expected "
                    f"{parameter.type}"
                )
        for index, result in enumerate(signature.results):
            if result.dynamic:
                raise ProgramError(
                    f"call {program.name!r}: result {index}: found dimensions {result.dynamic} of "
                    "bounded size, expected sizes that are known"
                )
        types = [result.type for result in signature.results]
        return self._call(types, self._symbol(program, rewrites), operands)

    def _symbol(self, program: Program, rewrites: Sequence[Round]) -> str:
        source = program.bytecode()
        found = self._called.get(source)
        if found is None:
            prefix = f"{program.name}.{len(self._called)}"
            found, functions = linking.take_over(
                self._module, source, prefix, inlined=bool(rewrites)
            )
            self._called[source] = found
            self._used_chlo = self._used_chlo or b"chlo" in source
            if rewrites:
                self._rewrite(rewrites, functions)
        return found
