"""Reading MLIR modules."""

from __future__ import annotations

from typing import Any

import pytest

from pjrt_bridge.stablehlo import bindings, modules

TEXT = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %r = stablehlo.tanh %x : tensor<2xf32>
  return %r : tensor<2xf32>
}
"""


@pytest.mark.parametrize("outer_first", [False, True])
def test_operations_are_visited_in_order(outer_first: bool) -> None:
    module = bindings.parse(TEXT, "a program")
    found: list[str] = []

    def visit(operation: Any) -> Any:
        found.append(operation.name)
        return bindings.load().ir.WalkResult.ADVANCE

    modules.walk(module.operation, visit, outer_first=outer_first)
    inner, outer = ["stablehlo.tanh", "func.return"], ["func.func", "builtin.module"]
    assert found == ([*reversed(outer), *inner] if outer_first else [*inner, *outer])


def test_an_interrupt_stays_one() -> None:
    module = bindings.parse(TEXT, "a program")

    def visit(operation: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        modules.walk(module.operation, visit)


def test_other_exceptions_are_the_bindings() -> None:
    module = bindings.parse(TEXT, "a program")

    def visit(operation: Any) -> Any:
        raise ValueError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        modules.walk(module.operation, visit)
