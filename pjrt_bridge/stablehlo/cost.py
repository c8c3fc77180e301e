"""What a program costs, by its operations: an estimate for where no compiler is asked.

Compilers write to memory what they do not fuse with its reader. Here a value that costs little to
compute is fused where it has one reader, and constants, broadcasts and reshapes always are; all
else is written once and read by each reader. Operations run in the order of the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.errors import UnsupportedDtype
from pjrt_bridge.stablehlo import bindings, modules
from pjrt_bridge.stablehlo.program.program import Program

_ALWAYS_FUSED = frozenset(
    "bitcast_convert broadcast_in_dim constant iota partition_id replica_id reshape tuple "
    "get_tuple_element".split()
)
_MOVING = _ALWAYS_FUSED | frozenset(
    "concatenate convert dynamic_slice dynamic_update_slice gather optimization_barrier pad "
    "return reverse slice transpose".split()
)
"""Operations that compute nothing themselves."""
COLLECTIVES = frozenset(
    "all_gather all_reduce all_to_all collective_broadcast collective_permute "
    "reduce_scatter".split()
)
"""Operations by which devices exchange data."""
_BY_OPERANDS = frozenset("all_reduce reduce reduce_scatter reduce_window scatter sort".split())
"""Operations that do one thing with each element of what they are given."""
_STRUCTURED = frozenset("case if while".split())
_WRITTEN = COLLECTIVES | frozenset(
    "cholesky convolution custom_call dot_general fft infeed recv reduce reduce_window rng rng_bit_generator "
    "scatter select_and_scatter sort triangular_solve".split()
)
"""Operations whose results a compiler writes to memory, whoever reads them."""
_IN_PART = frozenset("dynamic_slice gather slice".split())
"""Operations that read of their first operand only what they give."""


@dataclass(frozen=True)
class Cost:
    """What one execution of a program costs on each device that runs it.

    Attributes:
        flops: arithmetic operations on elements, of any type.
        bytes_accessed: that are read from memory and written to it.
        temporaries: bytes of memory that are needed between arguments and results.
        operations: of the program; the body of a loop counts once: how often it runs is not known.
    """

    flops: float
    bytes_accessed: float
    temporaries: int
    operations: int


def estimate(program: Program) -> Cost:
    """The cost of a program of static shapes, by its operations.

    Raises:
        ProgramError: no function `main`.
    """
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    bindings.run_passes(module, "inline")
    operations = [op for op in modules.operations(module) if op.name.startswith("stablehlo.")]
    found = _Block(modules.find_main(module).operation.regions[0].blocks[0])
    return Cost(
        float(sum(map(_flops, operations))),
        float(found.bytes_accessed),
        found.peak,
        len(operations),
    )


def communicated(code: bytes) -> dict[str, list[int]]:
    """By the name of each collective operation in HLO the bytes of the results of each.

    Args:
        code: of a module of StableHLO, as text or bytecode.

    Raises:
        ProgramError: no module.
    """
    module = bindings.parse(code, "program")
    found: dict[str, list[int]] = {}
    for operation in modules.operations(module):
        if _name(operation) in COLLECTIVES:
            size = sum(_nbytes(result.type) for result in operation.results)
            found.setdefault(_name(operation).replace("_", "-"), []).append(size)
    return found


class _Block:
    """The memory traffic of a block, and the most that it holds at any moment.

    Attributes:
        bytes_accessed: that are read and written.
        peak: bytes of the values that lie between the arguments and results.
    """

    def __init__(self, block: Any) -> None:
        operations = [view.operation for view in block.operations]
        self._readers: dict[Any, list[int]] = {}
        for at, operation in enumerate(operations):
            for value in _read_by(operation):
                self._readers.setdefault(value, []).append(at)
        given = set(operations[-1].operands) if operations else set()
        self.bytes_accessed = sum(
            _nbytes(argument.type) * bool(self._readers.get(argument))
            for argument in block.arguments
        )
        self.peak = held = 0
        freed: dict[int, int] = {}
        for at, operation in enumerate(operations[:-1]):
            inner = 0
            for region in operation.regions if _name(operation) in _STRUCTURED else ():
                bodies = [_Block(body) for body in region.blocks]
                self.bytes_accessed += sum(body.bytes_accessed for body in bodies)
                inner = max([inner, *(body.peak for body in bodies)])
            for result in operation.results:
                size = _nbytes(result.type)
                if self._is_fused(operation, result):
                    continue
                readers = self._readers.get(result, [])
                self.bytes_accessed += size
                for reader in readers:
                    self.bytes_accessed += self._taken(operations[reader], result, size)
                if result not in given:
                    held += size
                    last = self._last(result, operations)
                    freed[last] = freed.get(last, 0) + size
            self.peak = max(self.peak, held + inner)
            held -= freed.pop(at, 0)

    def _is_fused(self, operation: Any, result: Any) -> bool:
        name = _name(operation)
        if name in _ALWAYS_FUSED:
            return True
        if name in _WRITTEN or name in _STRUCTURED:
            return False
        return len(self._readers.get(result, ())) <= 1

    def _taken(self, reader: Any, value: Any, size: int) -> int:
        """Bytes that an operation reads of a value."""
        if _name(reader) == "return":
            return 0
        if _name(reader) in _IN_PART and reader.operands[0] == value:
            return min(size, sum(_nbytes(result.type) for result in reader.results))
        return size

    def _last(self, value: Any, operations: list[Any]) -> int:
        """Where a value, or what is fused over it, is read last."""
        found, open = -1, [value]
        while open:
            for at in self._readers.get(open.pop(), ()):
                found = max(found, at)
                operation = operations[at]
                if at < len(operations) - 1:
                    open += [one for one in operation.results if self._is_fused(operation, one)]
        return found


def _read_by(operation: Any) -> Iterator[Any]:
    """The operands of an operation, and what its regions read from around it."""
    yield from operation.operands
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _read_by(inner.operation)


def _name(operation: Any) -> str:
    return str(operation.name).rpartition(".")[2]


def _flops(operation: Any) -> int:
    name = _name(operation)
    if name in _MOVING or name in _STRUCTURED or not operation.results:
        return 0
    size = _size(operation.results[0].type)
    if name == "dot_general":
        left, right = (_size(operand.type) for operand in operation.operands)
        # M*K * K*N = (M*N) * K^2, with the batch in all three of them.
        numbers = bindings.load().stablehlo.DotDimensionNumbers(
            operation.attributes["dot_dimension_numbers"]
        )
        shape = _shape(operation.operands[0].type)
        batch = math.prod(shape[dim] for dim in numbers.lhs_batching_dimensions)
        return 2 * size * math.isqrt(left * right // max(size * batch, 1))
    if name == "convolution":
        kernel = operation.operands[1].type
        numbers = bindings.load().stablehlo.ConvDimensionNumbers(
            operation.attributes["dimension_numbers"]
        )
        features = _shape(kernel)[numbers.kernel_output_feature_dimension]
        return 2 * size * _size(kernel) // max(features, 1)
    if name in _BY_OPERANDS:
        return sum(_size(operand.type) for operand in operation.operands)
    if name in COLLECTIVES:
        return 0
    return size


def _shape(kind: Any) -> list[int]:
    parts = modules.tensor_parts(kind)
    return [] if parts is None else [size or 0 for size in parts[0]]


def _size(kind: Any) -> int:
    return math.prod(_shape(kind))


def _nbytes(kind: Any) -> int:
    parts = modules.tensor_parts(kind)
    if parts is None:
        return 0
    try:
        dtype = dtypes.from_stablehlo(parts[2])
    except UnsupportedDtype:
        return 0
    return math.prod(size or 0 for size in parts[0]) * dtype.itemsize
