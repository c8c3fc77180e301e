"""Operations of programs that are called, rewritten for a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pjrt_bridge.stablehlo import known_numbers, linking, modules
from pjrt_bridge.stablehlo.builder.emitter import Emitter
from pjrt_bridge.stablehlo.builder.values import Origin, Scope, Value
from pjrt_bridge.stablehlo.operation_kinds import PURE, named
from pjrt_bridge.stablehlo.types import TensorType


@dataclass(frozen=True)
class Operation:
    """An operation that was written before, as patterns see it.

    Attributes:
        name: such as `stablehlo.dot_general`.
        operands: values that can be used where the operation stands.
        results: types of its results.
        handle: the operation of MLIR, for its attributes and regions.
        value: a value that was written before, from MLIR's handle; it has to be one that can be
            used where the operation stands.
        again: writes copies of operations, given in their order, anew; the results of the last.
        call: calls a function of the module that has results of the types of the operation's, by
            its symbol.
        maker: the operation of MLIR that a value is a result of.
        supersede: puts a value in the place of the result of an earlier operation, by MLIR's
            handle, in what comes behind the operation, or moves elements.
    """

    name: str
    operands: tuple[Value, ...]
    results: tuple[TensorType, ...]
    handle: Any = field(repr=False)
    value: Callable[[Any], Value] = field(repr=False)
    again: Callable[[Sequence[Any]], tuple[Value, ...]] = field(repr=False)
    call: Callable[[str, Sequence[Value]], tuple[Value, ...]] = field(repr=False)
    maker: Callable[[Value], Any] = field(repr=False)
    supersede: Callable[[Any, Value], None] = field(repr=False)


Rewrite = Callable[[Any, Operation], "Sequence[Value] | None"]
"""Emits what takes the place of an operation into a builder; None leaves it as it is."""

Round = Mapping[str, Rewrite]
"""Rewrites by operation (`"stablehlo.dot_general"`), tried on one after the other."""


MOVING = ("stablehlo.reshape", "stablehlo.transpose")
"""Operations that only move elements, and are computed where they are read."""


class RewriteOps(Emitter):
    """Rewrites of operations."""

    def _rewrite(self, rounds: Sequence[Round], functions: Sequence[Any] | None = None) -> int:
        """Rewrite the operations of functions, by default all, round after round; how many were.

        What computes the same by the operation itself, in other shapes, is no better: then the
        operation stays.
        """
        if functions is None:
            functions = [view.operation for view in self._module.body.operations]
        for function in functions:
            _erase_needless(function)
        return sum(
            self._replace(handle, rewrites[handle.name])
            for rewrites in rounds
            for function in functions
            for handle in self._named(function, rewrites)
        )

    def _named(self, function: Any, names: Mapping[str, Rewrite]) -> list[Any]:
        ir, found = self._ir, []

        def visit(operation: Any) -> Any:
            if operation.name in names:
                if is_static(operation):
                    found.append(operation)
                # What is in its regions goes with it.
                return ir.WalkResult.SKIP
            return ir.WalkResult.ADVANCE

        modules.walk(function, visit, outer_first=True)
        return found

    def _replace(self, handle: Any, rewrite: Rewrite) -> bool:
        saved = self._ip, self._scopes, self._transposed, self._created, self._loc
        scope = Scope(self._module)
        created: list[Any] = []
        self._ip, self._scopes = self._ir.InsertionPoint(handle), (scope,)
        self._transposed, self._created, self._loc = {}, (scope, created), handle.location
        try:
            value = partial(self._value_of, scope=scope)
            operands = tuple(value(item) for item in handle.operands)
            results = tuple(self._tensor_type(handle.name, item.type) for item in handle.results)
            call = partial(self._call, results)
            superseded: list[Any] = []
            supersede = partial(_supersede, handle, superseded)
            written = Operation(
                *(handle.name, operands, results, handle, value, self._again, call),
                maker=lambda value: known_numbers.maker(value._handle),
                supersede=supersede,
            )
            found = rewrite(self, written)
            handles = [self._handle(handle.name, i, item) for i, item in enumerate(found or ())]
        finally:
            self._ip, self._scopes, self._transposed, self._created, self._loc = saved
        if found is None or _is_same(handle, created):
            for made in reversed(created):
                made.erase()
            return False
        for old, new in zip(handle.results, handles, strict=True):
            old.replace_all_uses_with(new)
        _erase_unused(handle)
        for made in superseded:
            if not any(True for result in made.results for _ in result.uses):
                made.erase()
        return True

    def _call(
        self, results: Sequence[TensorType], symbol: str, operands: Sequence[Value]
    ) -> tuple[Value, ...]:
        callee = self._ir.FlatSymbolRefAttr.get(symbol, self._context)
        return self._emit("func.call", operands, {"callee": callee}, results)

    def _again(self, handles: Sequence[Any]) -> tuple[Value, ...]:
        copies: dict[Any, Any] = {}
        last = [linking.copy(handle, copies, self._ip) for handle in handles][-1]
        scope = self._scopes[-1]
        return tuple(
            Value(self._tensor_type(last.name, result.type), result, scope)
            for result in last.results
        )

    def _value_of(self, handle: Any, scope: Scope, depth: int = 2) -> Value:
        """A value that was written before, with what it has the elements of."""
        type = self._tensor_type("operand", handle.type)
        owner = getattr(handle.owner, "operation", handle.owner)
        name = getattr(owner, "name", "")
        if not depth or name not in _FOLLOWED:
            return Value(type, handle, scope)
        (source,) = owner.operands
        if name == "stablehlo.convert":
            narrow = self._value_of(source, scope, depth - 1)
            wider = narrow.dtype.bits < type.dtype.bits
            return Value(type, handle, scope, widened=narrow if wider else None)
        permutation = None
        if name == "stablehlo.transpose":
            permutation = tuple(int(dim) for dim in owner.attributes["permutation"])
        origin = Origin(self._value_of(source, scope, depth - 1), permutation)
        return Value(type, handle, scope, origin=origin)


def is_static(operation: Any) -> bool:
    """Whether a program says the sizes of all that an operation takes and gives."""
    values = [*operation.operands, *operation.results]
    return all(getattr(value.type, "has_static_shape", True) for value in values)


def _supersede(anchor: Any, superseded: list[Any], old: Any, value: Value) -> None:
    """Put a value in the place of an older one behind an operation.

    What moves the older one's elements goes there, too.
    """
    for user in set(known_numbers.users(old)):
        if not is_behind(user, anchor):
            if user.name not in MOVING:
                continue
            _move_before(user, anchor)
        user.replace_uses_of_with(old, value._handle)
    made = known_numbers.maker(old)
    if made not in superseded:
        superseded.append(made)


def _move_before(operation: Any, anchor: Any) -> None:
    """Move an operation, and what moves its elements further, in front of a later one."""
    operation.move_before(anchor)
    for user in list(known_numbers.users(operation.results[0])):
        if user.name in MOVING and not is_behind(user, anchor):
            _move_before(user, anchor)


def is_behind(operation: Any, other: Any) -> bool:
    """Whether an operation comes after another one in the other's block, or in a region there."""
    while operation.block != other.block:
        if operation.name == "func.func":
            return False
        operation = getattr(operation.parent, "operation", operation.parent)
    return bool(operation != other and other.is_before_in_block(operation))


def _erase_needless(function: Any) -> None:
    """Erase what nothing uses: it is no use of a value that keeps a pattern from going."""
    for region in function.regions:
        for block in region.blocks:
            for view in reversed(list(block.operations)):
                if _is_needless(view.operation):
                    view.operation.erase()


def _erase_unused(handle: Any) -> None:
    """Erase an operation that nothing uses, and those that only it used, if they do nothing else.

    So no later round finds what is computed for nothing.
    """
    pending = [handle]
    while pending:
        item = pending.pop()
        sources = {getattr(operand.owner, "operation", operand.owner) for operand in item.operands}
        item.erase()
        pending += [source for source in sources if _is_needless(source)]


def _is_needless(owner: Any) -> bool:
    """Whether it is an operation without effects whose results nothing uses."""
    if getattr(owner, "name", "") not in _ERASABLE:
        return False
    return not any(True for result in owner.results for _ in result.uses)


_ERASABLE = named(PURE) | {"chlo.erf", "chlo.square"}
"""Operations without effects: those that nothing uses are erased."""
_FOLLOWED = ("stablehlo.convert", "stablehlo.reshape", "stablehlo.transpose")
"""Operations whose operand is known of their result."""


def _is_same(handle: Any, created: Sequence[Any]) -> bool:
    """Whether what was made for an operation is this again, or its results, in other shapes."""
    names = {made.name for made in created}
    own = list(handle.results)
    reads_it = any(operand in own for made in created for operand in made.operands)
    return names <= {handle.name, *_PLAIN} and (handle.name in names or reads_it)


_PLAIN = tuple(f"stablehlo.{name}" for name in ("constant", "convert", "reshape", "transpose"))
"""Operations that a kernel may need around an operation, and that compute nothing."""
