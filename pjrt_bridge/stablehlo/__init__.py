"""StableHLO programs: the only package that imports jaxlib, and only when first needed.

`Builder` writes programs, `Program` holds, reads and serializes them, `Signature` describes their
parameters and results; `Composite` names an operation that a compiler may know; `shard` divides a
program over a `Mesh`. `memory_order` and `is_in_memory` tell how a `Value` is expected to lie in
memory, `is_argument` and `may_be_computed_with` what it is computed of; an `ElementwiseFunction`
emits what a target has in place of an operation. Importing this package does not import jaxlib.
"""

from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.builder.dependence import is_argument, may_be_computed_with
from pjrt_bridge.stablehlo.builder.orders import Order, inverse_order, is_in_memory, memory_order
from pjrt_bridge.stablehlo.builder.values import ElementwiseFunction, Value
from pjrt_bridge.stablehlo.composites import Composite
from pjrt_bridge.stablehlo.partitioning.propagation import ShardedProgram, shard
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.sharding.mesh import Mesh
from pjrt_bridge.stablehlo.sharding.sharding import Sharding
from pjrt_bridge.stablehlo.types import Parameter, Result, Signature, TensorType

__all__ = [
    "Builder",
    "Composite",
    "ElementwiseFunction",
    "Mesh",
    "Order",
    "Parameter",
    "Program",
    "Result",
    "ShardedProgram",
    "Sharding",
    "Signature",
    "TensorType",
    "Value",
    "inverse_order",
    "is_argument",
    "is_in_memory",
    "may_be_computed_with",
    "memory_order",
    "shard",
]
