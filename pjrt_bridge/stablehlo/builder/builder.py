"""The Builder: writes one StableHLO program, operation by operation, and verifies as it goes.

    builder = Builder([TensorType((2, 3), dtypes.of("float32"))])
    (x,) = builder.parameters
    program = builder.finish([builder.tanh(x)])

The op methods are in the modules beside this one; this one has parameters, donation and `finish`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings, linking, modules
from pjrt_bridge.stablehlo.builder.chlo import ChloOps
from pjrt_bridge.stablehlo.builder.collectives import CollectiveOps
from pjrt_bridge.stablehlo.builder.composites import CompositeOps
from pjrt_bridge.stablehlo.builder.numerical import NumericalOps
from pjrt_bridge.stablehlo.builder.rewriting import Operation, Round
from pjrt_bridge.stablehlo.builder.shaping import ShapeOps
from pjrt_bridge.stablehlo.builder.structured import StructuredOps
from pjrt_bridge.stablehlo.builder.values import ElementwiseFunction, Value
from pjrt_bridge.stablehlo.precision import Precisions
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.sharding.mesh import SYMBOL
from pjrt_bridge.stablehlo.sharding.sharding import Sharding
from pjrt_bridge.stablehlo.types import Parameter, TensorType
from pjrt_bridge.wrong_arguments import checked_methods

__all__ = ["Builder", "Value"]


@checked_methods
class Builder(StructuredOps, CollectiveOps, CompositeOps, ChloOps, ShapeOps, NumericalOps):
    """Emits a StableHLO module with one public function `main`.

    Operations have exact StableHLO semantics: no implicit broadcasting, no promotion. A malformed
    operation raises `ProgramError` at the call and leaves nothing behind. Each builder has an MLIR
    context of its own, so builders of several threads are independent; one builder belongs to one
    thread at a time.

    Args:
        parameters: types of `main`'s parameters; a `Parameter` also brings layout, donation and
            sharding.
        name: symbol name of the module.
        excess_precision: floats that are rounded to a narrower type remember what they were
            (`Value.exact`). The caller decides where that is read instead.
        precisions: of products and convolutions that do not state their own; None: these leave it
            to the compiler.
        functions: what takes the place of elementwise operations as the program is finished;
            None: nothing.
        finishing: what takes the place of operations when all are written.

    Attributes:
        took_precisions: there are operations that the precisions were asked for.
        has_effects: there are custom calls with a side effect, such as failing the program.
    """

    def __init__(
        self,
        parameters: Sequence[TensorType | Parameter] = (),
        *,
        name: str = "main",
        excess_precision: bool = False,
        precisions: Precisions | None = None,
        functions: Mapping[str, ElementwiseFunction] | None = None,
        finishing: Sequence[Round] = (),
    ) -> None:
        super().__init__(name, excess_precision=excess_precision)
        self._precisions = precisions
        self._functions = functions or {}
        self._finishing = finishing
        self._described = [
            item if isinstance(item, Parameter) else Parameter(item) for item in parameters
        ]
        self._aliased = {
            item.alias: index
            for index, item in enumerate(self._described)
            if item.alias is not None
        }
        types = [item.type for item in self._described]
        top = self._ir.InsertionPoint(self._module.body)
        self._main, block = self._function(types, "main", ip=top)
        self.parameters: tuple[Value, ...] = self._enter(block, types, ())
        self._outermost = self._scopes

    @classmethod
    def rewritten(
        cls,
        program: Program,
        rewrites: Sequence[Round],
        functions: Mapping[str, ElementwiseFunction] | None = None,
    ) -> Program:
        """A program with operations rewritten; the same one where none is.

        What the program says of its parameters and results stays.

        Args:
            program: is not changed.
            rewrites: what takes the place of operations.
            functions: what takes the place of elementwise operations that are left.

        Raises:
            ProgramError: what was emitted does not verify.
        """
        builder = cls(name=program.name, functions=functions, finishing=rewrites)
        source = program.bytecode()
        builder._module = module = builder._ir.Module.parse(source, builder._context)
        builder._used_chlo = b"chlo" in source
        linking.inline_small(module)
        if not builder._rewrite_for_target():
            return program
        builder._verify()
        return Program.from_module(module)

    def donate(self, parameter: int, output: int | None = None) -> None:
        """Let the plugin reuse a parameter's memory.

        Args:
            parameter: index of the parameter.
            output: index of the output that must take its memory (`tf.aliasing_output`); None:
                any output may (`jax.buffer_donor`).

        Raises:
            ProgramError: no such parameter, or another one is aliased to the output.
        """
        if not 0 <= parameter < len(self._described):
            raise ProgramError(
                f"donate: parameter {parameter} of {len(self._described)} does not exist"
            )
        if output is not None:
            taken = self._aliased.get(output, parameter)
            if taken != parameter:
                raise ProgramError(f"donate: output {output} takes parameter {taken} already")
        before = self._described[parameter]
        if before.alias is not None:
            self._aliased.pop(before.alias, None)
        if output is not None:
            self._aliased[output] = parameter
        self._described[parameter] = replace(
            before, donation="may" if output is None else "must", alias=output
        )

    def constrain(
        self,
        value: Value,
        sharding: Sharding,
        *,
        open: Collection[int] = (),
        replicated: Collection[str] = (),
    ) -> Value:
        """The same value with a sharding that the partitioner has to give it.

        Args:
            value: any value of the function.
            sharding: over the mesh that the program will be divided over; all constraints of a
                program are over one mesh.
            open: dimensions that the partitioner may divide further.
            replicated: axes along which it must not divide the value.

        Raises:
            ProgramError: a sharding for another rank, or another mesh than before.
        """
        modules.declare_mesh(self._module, SYMBOL, sharding.mesh.text)
        sharding.shard_shape(value.shape)
        text = sharding.text(open=open, replicated=replicated)
        attribute = self._ir.Attribute.parse(text, self._context)
        return self._emit_one("sdy.sharding_constraint", (value,), {"sharding": attribute})

    def finish(self, outputs: Sequence[Value]) -> Program:
        """Return the outputs, verify the whole and give the program; the builder is used up.

        Args:
            outputs: results of `main`; parameters and repeated values are allowed.

        Raises:
            ProgramError: foreign values, an alias to an output of another type or none, or a
                module that does not verify.
        """
        handles = [self._handle("finish", i, value) for i, value in enumerate(outputs)]
        if self._finished:
            raise ProgramError("finish: this builder is finished; make a new one")
        if self._scopes is not self._outermost:
            raise ProgramError("finish: called inside the body of an operation or a scratch")
        for index, item in enumerate(self._described):
            self._check_alias(index, item, outputs)
        ir = self._ir
        ir.Operation.create("func.return", operands=handles, loc=self._unknown, ip=self._ip)
        inputs = [self._mlir_type(item.type) for item in self._described]
        results = [self._mlir_type(value.type) for value in outputs]
        signature = ir.FunctionType.get(inputs, results, self._context)
        self._main.attributes["function_type"] = ir.TypeAttr.get(signature, self._context)
        attached = [self._attributes(item) for item in self._described]
        # An array of empty dictionaries is another program than none, by its bytecode.
        if any(len(attributes) for attributes in attached):
            self._main.attributes["arg_attrs"] = ir.ArrayAttr.get(attached, self._context)
        self._verify()
        self._rewrite_for_target()
        self._finished = True
        return Program.from_module(self._module)

    def _verify(self) -> None:
        try:
            self._module.operation.verify()
        except self._ir.MLIRError as error:
            raise ProgramError(f"finish: {bindings.explain(error)}") from None
        self._drop_uncalled()

    def _rewrite_for_target(self) -> int:
        """Write what the target computes in the place of operations; how many these were.

        Functions come last: other rewrites may take them as a part of what they find. Those of
        CHLO are made of others, of which the target may have functions, too.
        """
        count = self._rewrite(self._finishing)
        own = dict.fromkeys(self._functions, self._function_of)
        if self._used_chlo:
            count += self._rewrite(({name: own[name] for name in own if name[:4] == "chlo"},))
            bindings.run_passes(self._module, "func.func(chlo-legalize-to-stablehlo)")
        return count + (self._rewrite((own,)) if own else 0)

    def _function_of(self, _: Any, operation: Operation) -> Sequence[Value] | None:
        found = self._functions[operation.name](self, *operation.operands)
        return None if found is None else [found]

    @staticmethod
    def _check_alias(index: int, item: Parameter, outputs: Sequence[Value]) -> None:
        if item.alias is None:
            return
        if not 0 <= item.alias < len(outputs):
            raise ProgramError(
                f"finish: parameter {index} is donated to output {item.alias}, "
                f"but there are {len(outputs)} outputs"
            )
        if outputs[item.alias].type != item.type:
            raise ProgramError(
                f"finish: parameter {index} ({item.type}) is donated to output {item.alias}, "
                f"which has the type {outputs[item.alias].type}"
            )

    def _attributes(self, item: Parameter) -> Any:
        ir = self._ir
        attributes = {}
        if item.layout is not None:
            attributes["mhlo.layout_mode"] = self._str(f"{{{','.join(map(str, item.layout))}}}")
        if item.donation == "may":
            attributes["jax.buffer_donor"] = self._bool(True)
        if item.alias is not None:
            i32 = ir.IntegerType.get_signless(32, self._context)
            attributes["tf.aliasing_output"] = ir.IntegerAttr.get(i32, item.alias)
        if item.sharding is not None:
            attributes["mhlo.sharding"] = self._str(item.sharding)
        return ir.DictAttr.get(attributes, self._context)
