"""How exact products state that they have to be."""

from __future__ import annotations

from typing import Any

import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Program, Value
from pjrt_bridge.stablehlo.kernel_attributes import Convolution
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns import for_target
from pjrt_bridge.stablehlo.precision import Precision, Precisions
from pjrt_bridge.stablehlo.types import TensorType


def _program(dtype: str, precisions: Precisions | None, **stated: Precision) -> Program:
    types = [TensorType((2, 3, 8), dtypes.of(dtype)), TensorType((4, 3, 3), dtypes.of(dtype))]
    b = Builder(types, precisions=precisions)
    x, kernel = b.parameters
    return b.finish(
        [
            b.dot_general(x, kernel, lhs_contract=(1,), rhs_contract=(1,), **stated),
            b.convolution(
                x,
                kernel,
                window_strides=(1,),
                padding=[(0, 0)],
                dimension_numbers=("NCW", "OIW", "NCW"),
                **stated,
            ),
        ]
    )


def _stated(program: Program) -> tuple[str, str]:
    """What a program states for its product and its convolution."""
    found = {}
    for line in program.text.splitlines():
        for op in ("dot_general", "convolution"):
            if f"stablehlo.{op}" in line:
                named = [name for name in ("HIGHEST", "HIGH") if name in line]
                found[op] = named[0] if named else "DEFAULT"
    return found["dot_general"], found["convolution"]


@pytest.mark.parametrize(
    ("dtype", "precisions", "stated"),
    [
        ("float32", None, ("DEFAULT", "DEFAULT")),
        ("float32", Precisions(), ("HIGHEST", "HIGHEST")),
        ("float32", Precisions("HIGH", "HIGHEST"), ("HIGH", "HIGHEST")),
        ("float32", Precisions("DEFAULT", "HIGH"), ("DEFAULT", "HIGH")),
        ("complex64", Precisions("HIGH", "HIGH"), ("HIGH", "HIGH")),
        ("float64", Precisions("DEFAULT", "DEFAULT"), ("HIGHEST", "HIGHEST")),
        ("complex128", Precisions("DEFAULT", "DEFAULT"), ("HIGHEST", "HIGHEST")),
        ("float64", None, ("DEFAULT", "DEFAULT")),
        ("bfloat16", Precisions(), ("DEFAULT", "DEFAULT")),
        ("float16", Precisions(), ("DEFAULT", "DEFAULT")),
        ("int32", Precisions(), ("DEFAULT", "DEFAULT")),
    ],
)
def test_by_element_type(
    dtype: str, precisions: Precisions | None, stated: tuple[str, str]
) -> None:
    assert _stated(_program(dtype, precisions)) == stated


@pytest.mark.parametrize("precision", ["DEFAULT", "HIGH", "HIGHEST"])
def test_what_an_operation_states_holds(precision: Precision) -> None:
    program = _program("float32", Precisions("HIGH", "HIGH"), precision=precision)
    assert _stated(program) == (precision, precision)


class _Negated(Kernels):
    """Kernels that write products and convolutions anew, and of the negative left side."""

    def product(self, b: Builder, x: Value, y: Value, **how: Any) -> Value:
        return b.negate(super().product(b, b.negate(x), y, **how))

    def convolution(
        self, b: Builder, x: Value, weight: Value, how: Convolution, **types: Any
    ) -> Value:
        return b.negate(super().convolution(b, b.negate(x), weight, how, **types))


@pytest.mark.parametrize("precision", ["DEFAULT", "HIGH", "HIGHEST"])
def test_rewritten_operations_stay_as_exact(precision: Precision) -> None:
    program = _program("float32", None, precision=precision)
    rewritten = for_target(program, _Negated())
    assert "negate" in rewritten.text
    assert _stated(rewritten) == (precision, precision)
