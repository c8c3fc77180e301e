"""Arrays whose elements are copied: what is followed, and that it ends."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import Assembly
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns import assemblies
from tests.stablehlo.helpers import program, tensor


class Copying(Kernels):
    """Kernels that note the assemblies, and call for them what no target has."""

    def __init__(self) -> None:
        self.found: list[Assembly] = []

    def assemble(self, b: Builder, assembly: Assembly, sources: Sequence[Value]) -> Value | None:
        self.found.append(assembly)
        shape = assembly.shape
        (made,) = b.custom_call("noted", sources, [tensor(*shape)])
        return made


def noted(body: object, *shape: int) -> list[Assembly]:
    kernels = Copying()
    rounds = [
        dict.fromkeys(
            assemblies.ROOTS, lambda b, operation: assemblies.assembled(kernels, b, operation)
        )
    ]
    Builder.rewritten(program(body, tensor(*shape)), rounds)  # type: ignore[arg-type]
    return kernels.found


def test_values_that_are_used_again_and_again_are_followed_once() -> None:
    """Each step has the one before it twice."""

    def doubled(b: Builder, x: Value) -> Value:
        for _ in range(20):
            x = b.concatenate([x, x], 0)
        return x

    def overwritten(b: Builder, x: Value) -> Value:
        zero = b.full((), 0, "int32")
        x = b.reverse(x, [0])
        for _ in range(30):
            x = b.dynamic_update_slice(x, b.slice(x, [1], [4], [1]), [zero])
        return x

    assert noted(doubled, 2) == []
    (found,) = noted(overwritten, 4)
    assert found.shape == (4,)


def test_a_shape_without_common_parts_is_written_and_read_again() -> None:
    def body(b: Builder, x: Value) -> Value:
        return b.reverse(b.reshape(b.reverse(x, [0]), (4, 6)), [1])

    assert [item.shape for item in noted(body, 6, 4)] == [(6, 4), (4, 6)]


def test_what_is_computed_is_no_copy() -> None:
    assert noted(lambda b, x: b.reverse(b.sin(x), [0]), 6, 4) == []
    assert len(noted(lambda b, x: b.reverse(x, [0]), 6, 4)) == 1
    assert noted(lambda b, x: b.sin(b.reverse(x, [0])), 6, 4) == []
    assert noted(lambda b, x: b.slice(x, [0, 0], [6, 4], [1, 1]), 6, 4) == []
