"""StableHLO programs that tests compile."""

from __future__ import annotations

from typing import Any

import pytest

from pjrt_bridge.runtime import Client, Executable
from pjrt_bridge.stablehlo import Program


def note_compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of the programs that are compiled from now on, in order."""
    found: list[str] = []
    usual = Client.compile

    def compile(self: Client, program: Program, **how: Any) -> Executable:
        found.append(program.text)
        return usual(self, program, **how)

    monkeypatch.setattr(Client, "compile", compile)
    return found


def elementwise(type: str, *, op: str = "add", attributes: str = "", result: str = "") -> str:
    """Two parameters of one tensor type, one result: `op` of both."""
    return f"""
    module @{op} {{
      func.func @main(%a: {type} {attributes}, %b: {type}) -> ({type} {result}) {{
        %0 = stablehlo.{op} %a, %b : {type}
        return %0 : {type}
      }}
    }}
    """


def identity(type: str, *, attributes: str = "", result: str = "") -> str:
    """The parameter is the result."""
    return f"""
    module @identity {{
      func.func @main(%a: {type} {attributes}) -> ({type} {result}) {{ return %a : {type} }}
    }}
    """


ADD = elementwise("tensor<64xf32>")

ALIASED_ADD = elementwise("tensor<64xf32>", attributes="{tf.aliasing_output = 0 : i32}")
"""The first argument's memory becomes the result's."""

DONOR_ADD = elementwise("tensor<64xf32>", attributes="{jax.buffer_donor = true}")

TWO_RESULTS = """
module @two {
  func.func @main(%a: tensor<4xf32>, %b: tensor<2xi32>)
      -> (tensor<4xf32>, tensor<i32>, tensor<2xi32>) {
    %0 = stablehlo.negate %a : tensor<4xf32>
    %1 = stablehlo.constant dense<7> : tensor<i32>
    return %0, %1, %b : tensor<4xf32>, tensor<i32>, tensor<2xi32>
  }
}
"""

NOTHING = "module @nothing { func.func @main() { return } }"

CONSTANT = """
module @constant {
  func.func @main() -> tensor<2xf32> {
    %0 = stablehlo.constant dense<[3.0, 4.0]> : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"""

SINK = "module @sink { func.func @main(%a: tensor<64xf32>) { return } }"

MATMUL = """
module @matmul {
  func.func @main(%a: tensor<512x512xf32>) -> tensor<512x512xf32> {
    %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
      : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
    return %0 : tensor<512x512xf32>
  }
}
"""

SLOW = """
module @slow {
  func.func @main(%a: tensor<512x512xf32>) -> tensor<512x512xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %end = stablehlo.constant dense<40> : tensor<i32>
    %scale = stablehlo.constant dense<0.001953125> : tensor<512x512xf32>
    %r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, tensor<512x512xf32>
      cond {
        %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %n = stablehlo.add %i, %one : tensor<i32>
        %d = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
          : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
        %y = stablehlo.multiply %d, %scale : tensor<512x512xf32>
        stablehlo.return %n, %y : tensor<i32>, tensor<512x512xf32>
      }
    return %r#1 : tensor<512x512xf32>
  }
}
"""
"""Takes tenths of a second; maps a matrix of ones to ones."""

ALL_REDUCE = """
module @all_reduce {
  func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.all_reduce"(%a) ({
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %s = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""


def bounded(source: str, result: str, dimension: int) -> str:
    """Cuts one dimension of the first argument to the second one, a number."""
    return f"""
    module @bounded {{
      func.func @main(%a: {source}, %n: tensor<i32>) -> {result} {{
        %0 = "stablehlo.set_dimension_size"(%a, %n) {{dimension = {dimension} : i64}}
          : ({source}, tensor<i32>) -> {result}
        return %0 : {result}
      }}
    }}
    """
