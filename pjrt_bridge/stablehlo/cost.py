"""What a program costs on each device, by its operations: an estimate where no compiler is asked.

Compilers write to memory what they do not fuse with its reader. Here a value that costs little to
compute is fused where it has one reader, and constants and broadcasts always are; all else is
written once and read by each reader, and results are written. A reshape is the value that it reads.
Operations run in the order of the program. The body of a loop that counts up to a constant counts
for each turn, that of any other loop once. What Shardy divides counts as far as one device has it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pjrt_bridge.stablehlo import bindings, composites, modules
from pjrt_bridge.stablehlo.known_numbers import direction_of
from pjrt_bridge.stablehlo.operation_kinds import COPYING, names_in
from pjrt_bridge.stablehlo.partitioning.partition import with_collectives
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.sharding.mesh import Mesh, axes_in
from pjrt_bridge.stablehlo.sharding.sharding import Sharding

_ALWAYS_FUSED = names_in("""
    all_slice bitcast_convert broadcast_in_dim constant get_tuple_element iota partition_id
    replica_id reshape tuple
""")
_RENAMING = names_in("reshape")
"""Operations whose result is their operand in memory."""
_MOVING = COPYING | _ALWAYS_FUSED | names_in("convert optimization_barrier return")
"""Operations that compute nothing themselves."""
COLLECTIVES = names_in("""
    all_gather all_reduce all_to_all collective_broadcast collective_permute reduce_scatter
""")
"""Operations by which devices exchange data."""
_BY_OPERANDS = names_in("all_reduce reduce reduce_scatter reduce_window scatter sort")
"""Operations that do one thing with each element of what they are given."""
_STRUCTURED = names_in("case if while")
_WRITTEN = COLLECTIVES | names_in("""
    cholesky convolution custom_call dot_general fft infeed recv reduce reduce_window rng
    rng_bit_generator scatter select_and_scatter sort triangular_solve
""")
"""Operations whose results a compiler writes to memory, whoever reads them."""
_IN_PART = names_in("all_slice dynamic_slice gather slice")
"""Operations that read of their first operand only what they give."""

_COUNTERS = ("tensor<i32>", "tensor<i64>")
"""Types of the numbers that count the turns of loops."""
_PER_VALUE = re.compile(r"<(@[^<>]*)>")
"""One sharding in Shardy's list of those of several results."""


@dataclass(frozen=True)
class Cost:
    """What one execution of a program costs on each device that runs it.

    Attributes:
        flops: arithmetic operations on elements, of any type.
        bytes_accessed: that are read from memory and written to it.
        temporaries: bytes of memory that are needed between arguments and results.
        operations: of the program, those of the body of a loop once.
        exchanged: by the name of each collective operation in HLO the bytes of the results of each,
            for all turns of the loop that it is in.
    """

    flops: float
    bytes_accessed: float
    temporaries: int
    operations: int
    exchanged: Mapping[str, list[int]]


def estimate(program: Program) -> Cost:
    """The cost of a program of static shapes, by its operations.

    Args:
        program: for one device, or with closed shardings of parameters and results, as `shard`
            gives it.

    Raises:
        ProgramError: no function `main`, or Shardy cannot divide it.
    """
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    composites.inline(module)
    if modules.meshes(module):
        module = with_collectives(program)
    else:
        bindings.run_passes(module, "inline")
    sizes = _DeviceSizes(module)
    operations = [
        (operation, turns)
        for operation, turns in _with_turns(module.operation, 1)
        if _is_counted(operation)
    ]
    found = _BlockCost(modules.find_main(module).operation.regions[0].blocks[0], sizes)
    return Cost(
        float(sum(_flops(operation, sizes) * turns for operation, turns in operations)),
        float(found.bytes_accessed),
        found.peak,
        len(operations),
        _exchanged(operations, sizes),
    )


def communicated(code: bytes) -> dict[str, list[int]]:
    """By the name of each collective operation in HLO the bytes of the results of each.

    Args:
        code: of a module of one device, as text or bytecode.

    Raises:
        ProgramError: no module.
    """
    module = bindings.parse(code, "program")
    return _exchanged(_with_turns(module.operation, 1), _DeviceSizes(module))


def _is_counted(operation: Any) -> bool:
    dialect, _, name = operation.name.partition(".")
    return dialect == "stablehlo" or (dialect == "sdy" and name in COLLECTIVES)


def _exchanged(operations: Iterable[tuple[Any, int]], sizes: _DeviceSizes) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for operation, turns in operations:
        if _name(operation) in COLLECTIVES:
            size = sum(map(sizes.nbytes, operation.results)) * turns
            found.setdefault(_name(operation).replace("_", "-"), []).append(size)
    return found


class _DeviceSizes:
    """The sizes that values have on one device.

    Args:
        module: of one device, or with collective operations by Shardy.
    """

    def __init__(self, module: Any) -> None:
        self._meshes = {
            symbol: Mesh.of(axes_in(text)) for symbol, text in modules.meshes(module).items()
        }
        self._tiles: dict[str, tuple[int, ...]] = {}
        self._of_arguments: dict[Any, str] = {}
        if self._meshes:
            main = modules.find_main(module)
            arguments = main.operation.regions[0].blocks[0].arguments
            described, _ = modules.function_values(main)
            for argument, (_, attributes) in zip(arguments, described, strict=True):
                self._of_arguments[argument] = attributes["sdy.sharding"]

    def shape(self, value: Any) -> list[int]:
        """The shape that one device has of a value; what is no tensor has none."""
        parts = modules.tensor_parts(value.type)
        if parts is None:
            return []
        whole = [size or 0 for size in parts[0]]
        tiles = self._tiles_of(value) if self._meshes else None
        if tiles is None:
            return whole
        return [-(-size // tile) for size, tile in zip(whole, tiles, strict=True)]

    def elements(self, value: Any) -> int:
        """Number of elements of it."""
        return math.prod(self.shape(value))

    def nbytes(self, value: Any) -> int:
        """Bytes of it."""
        return self.elements(value) * modules.item_size(value.type)

    def _tiles_of(self, value: Any) -> tuple[int, ...] | None:
        """Into how many parts each dimension is divided; None where nothing says so."""
        text = self._of_arguments.get(value)
        if text is None:
            attributes = getattr(value.owner, "attributes", {})
            if "out_sharding" in attributes:
                text = str(attributes["out_sharding"])
            elif "sdy.sharding" in attributes:
                every = _PER_VALUE.findall(str(attributes["sdy.sharding"]))
                text = f"#sdy.sharding<{every[value.result_number]}>"
        if text is None:
            return None
        if text not in self._tiles:
            self._tiles[text] = Sharding.parse(text, self._meshes).tiles
        return self._tiles[text]


class _BlockCost:
    """The memory traffic of a block, and the most that it holds at any moment.

    Attributes:
        bytes_accessed: that are read and written.
        peak: bytes of the values that lie between the arguments and results.
    """

    def __init__(self, block: Any, sizes: _DeviceSizes) -> None:
        self._operations = operations = [view.operation for view in block.operations]
        self._readers: dict[Any, list[int]] = {}
        for at, operation in enumerate(operations):
            if _name(operation) not in _RENAMING:
                for value in set(map(_renamed, _read_by(operation))):
                    self._readers.setdefault(value, []).append(at)
        given = set(map(_renamed, operations[-1].operands)) if operations else set()
        made = {result for operation in operations for result in operation.results}
        self.bytes_accessed = 0
        # Arguments, and what a body reads from around it.
        for value in self._readers.keys() - made:
            if not _is_constant(value):
                size = sizes.nbytes(value)
                taken = (_taken(operations[at], value, sizes) for at in self._readers[value])
                self.bytes_accessed += min(size, sum(taken))
        self.peak = held = 0
        freed: dict[int, int] = {}
        for at, operation in enumerate(operations[:-1]):
            inner = 0
            turns = _turns(operation)
            for region in operation.regions if _name(operation) in _STRUCTURED else ():
                bodies = [_BlockCost(body, sizes) for body in region.blocks]
                self.bytes_accessed += turns * sum(body.bytes_accessed for body in bodies)
                inner = max([inner, *(body.peak for body in bodies)])
            for result in operation.results:
                if self._is_fused(operation, result):
                    self.bytes_accessed += sizes.nbytes(result) * (result in given)
                    continue
                size = sizes.nbytes(operation.operands[1] if _is_in_place(operation) else result)
                readers = [operations[reader] for reader in self._readers.get(result, ())]
                self.bytes_accessed += size
                self.bytes_accessed += sum(_taken(one, result, sizes) for one in readers)
                if result not in given:
                    held += size
                    last = max(at, self._last(result, operations))
                    freed[last] = freed.get(last, 0) + size
            self.peak = max(self.peak, held + inner)
            held -= freed.pop(at, 0)

    def _is_fused(self, operation: Any, result: Any) -> bool:
        name = _name(operation)
        if name in _ALWAYS_FUSED:
            return not self._is_part_of_sum(operation)
        if name in _WRITTEN or name in _STRUCTURED or _is_in_place(operation):
            return False
        return len(self._readers.get(result, ())) <= 1

    def _is_part_of_sum(self, operation: Any) -> bool:
        """Whether an operation takes this device's part of a sum of which nothing else is read.

        A compiler keeps that part, or makes no more: a sum of which each device has a part.
        """
        if _name(operation) != "all_slice":
            return False
        whole = _renamed(operation.operands[0])
        return _maker(whole) == "all_reduce" and all(
            _name(self._operations[reader]) == "all_slice" for reader in self._readers[whole]
        )

    def _last(self, value: Any, operations: list[Any]) -> int:
        """Where a value, or what is fused over it, is read last."""
        found, waiting = -1, [value]
        while waiting:
            for at in self._readers.get(waiting.pop(), ()):
                found = max(found, at)
                operation = operations[at]
                if at < len(operations) - 1:
                    waiting += [one for one in operation.results if self._is_fused(operation, one)]
        return found


def _with_turns(operation: Any, turns: int) -> Iterator[tuple[Any, int]]:
    """An operation and all in it, and how often each runs in one execution."""
    yield operation, turns
    inner = turns * _turns(operation)
    for region in operation.regions:
        for block in region.blocks:
            for view in block.operations:
                yield from _with_turns(view.operation, inner)


def _turns(operation: Any) -> int:
    """How often the body of a loop runs that counts up to a constant; 1 for anything else."""
    if _name(operation) != "while":
        return 1
    (condition,), (body,) = (region.blocks for region in operation.regions)
    (test,) = condition.operations[len(condition.operations) - 1].operands
    if _maker(test) != "compare" or direction_of(test.owner) != "LT":
        return 1
    counter, limit = test.owner.operands
    if counter not in list(condition.arguments):
        return 1
    at = counter.arg_number
    following = body.operations[len(body.operations) - 1].operands[at]
    if _maker(following) != "add" or body.arguments[at] not in list(following.owner.operands):
        return 1
    (step,) = (one for one in following.owner.operands if one != body.arguments[at])
    if str(counter.type) not in _COUNTERS:
        return 1
    numbers = (operation.operands[at], limit, step)
    first, last, each = map(modules.constant_number, numbers)
    if first is None or last is None or not each or each < 0:
        return 1
    return max(0, -(-(last - first) // each))


def _maker(value: Any) -> str:
    """The name of the operation that makes a value; empty for an argument."""
    return _name(value.owner) if hasattr(value.owner, "operands") else ""


def _renamed(value: Any) -> Any:
    """The value that lies in memory where a value does."""
    while _maker(value) in _RENAMING:
        value = value.owner.operands[0]
    return value


def _is_constant(value: Any) -> bool:
    return _maker(value) == "constant"


def _is_in_place(operation: Any) -> bool:
    """Whether an operation writes a part of its first operand, which a compiler lets it take."""
    return _name(operation) == "dynamic_update_slice"


def _taken(reader: Any, value: Any, sizes: _DeviceSizes) -> int:
    """Bytes that an operation reads of a value."""
    name, size = _name(reader), sizes.nbytes(value)
    if name == "return":
        return 0
    if name in _STRUCTURED:
        # A body counts what it reads itself.
        return size if value in map(_renamed, reader.operands) else 0
    if _is_in_place(reader) and _renamed(reader.operands[0]) == value:
        return 0
    if name in _IN_PART and _renamed(reader.operands[0]) == value:
        return min(size, sum(map(sizes.nbytes, reader.results)))
    return size


def _read_by(operation: Any) -> set[Any]:
    """The operands of an operation, and what its regions read from around it."""
    found = set(operation.operands)
    for region in operation.regions:
        for block in region.blocks:
            inner, made = set[Any](), set(block.arguments)
            for view in block.operations:
                inner |= _read_by(view.operation)
                made.update(view.operation.results)
            found |= inner - made
    return found


def _name(operation: Any) -> str:
    return str(operation.name).rpartition(".")[2]


def _flops(operation: Any, sizes: _DeviceSizes) -> int:
    name = _name(operation)
    if name in _MOVING or name in _STRUCTURED or not operation.results:
        return 0
    size = sizes.elements(operation.results[0])
    if name == "dot_general":
        left, right = map(sizes.elements, operation.operands)
        # M*K * K*N = (M*N) * K^2, with the batch in all three of them.
        numbers = bindings.load().stablehlo.DotDimensionNumbers(
            operation.attributes["dot_dimension_numbers"]
        )
        shape = sizes.shape(operation.operands[0])
        batch = math.prod(shape[dim] for dim in numbers.lhs_batching_dimensions)
        return 2 * size * math.isqrt(left * right // max(size * batch, 1))
    if name == "convolution":
        kernel = operation.operands[1]
        numbers = bindings.load().stablehlo.ConvDimensionNumbers(
            operation.attributes["dimension_numbers"]
        )
        features: int = sizes.shape(kernel)[numbers.kernel_output_feature_dimension]
        return 2 * size * sizes.elements(kernel) // max(features, 1)
    if name in _BY_OPERANDS:
        return sum(map(sizes.elements, operation.operands))
    return 0 if name in COLLECTIVES else size
