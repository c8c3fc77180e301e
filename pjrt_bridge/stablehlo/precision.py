"""How exact products and convolutions of floats have to be: `precision_config` of StableHLO.

A compiler may multiply float32 in a shorter type where a program does not say: XLA takes TF32 (10
bits of 23) on GPUs, and bfloat16 (7 bits) on TPUs. `HIGHEST` asks for float32, `HIGH` allows TF32
or a sum of three products of bfloat16, `DEFAULT` allows what is fastest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import bindings

Precision = Literal["DEFAULT", "HIGH", "HIGHEST"]

ORDER: tuple[Precision, ...] = ("DEFAULT", "HIGH", "HIGHEST")
"""All precisions, the least exact first."""


@dataclass(frozen=True)
class Precisions:
    """The precisions of operations that do not state their own.

    They hold for float32 and complex64. Products of float64 and complex128 are never shortened;
    those of half precision and of 8 bits are exact in float32 as they are.

    Attributes:
        product: of `dot_general`.
        convolution: of `convolution` and `dynamic_conv`.
    """

    product: Precision = "HIGHEST"
    convolution: Precision = "HIGHEST"

    def of(self, op: str, dtype: DType) -> Precision:
        """The precision of an operation, by its name, on operands of an element type."""
        bits = dtype.bits // 2 if dtype.is_complex else dtype.bits
        if not (dtype.is_float or dtype.is_complex) or bits < 32:
            return "DEFAULT"
        if bits > 32:
            return "HIGHEST"
        return self.product if op == "stablehlo.dot_general" else self.convolution


_OPERATIONS = tuple(f"stablehlo.{name}" for name in ("convolution", "dot_general", "dynamic_conv"))


def state(operation: Any, precisions: Precisions) -> None:
    """Have an operation of MLIR state its precision, if it is a product or a convolution."""
    if operation.name not in _OPERATIONS:
        return
    element = dtypes.from_stablehlo(str(operation.operands[0].type.element_type))
    stablehlo, ir = bindings.load().stablehlo, bindings.load().ir
    found = stablehlo.PrecisionAttr.get(precisions.of(operation.name, element), operation.context)
    operation.attributes["precision_config"] = ir.ArrayAttr.get([found] * 2, operation.context)


def stated(operation: Any) -> Precision:
    """The precision that an operation of MLIR states; of two operands' the more exact one."""
    if "precision_config" not in operation.attributes:
        return "DEFAULT"
    attribute = bindings.load().stablehlo.PrecisionAttr
    found: Iterable[Precision] = (
        cast(Precision, attribute(item).value) for item in operation.attributes["precision_config"]
    )
    return max(found, key=ORDER.index, default="DEFAULT")
