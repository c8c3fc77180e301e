"""Arrays whose elements are copied: what is followed, and that it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Program, TensorType, Value
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
        (made,) = b.custom_call("noted", sources, [TensorType(shape, sources[0].dtype)])
        return made


def rewritten(source: Program, kernels: Copying) -> Program:
    rounds = [
        dict.fromkeys(
            assemblies.ROOTS, lambda b, operation: assemblies.assembled(kernels, b, operation)
        )
    ]
    return Builder.rewritten(source, rounds)


def noted(body: Callable[..., Value], *shape: int) -> list[Assembly]:
    kernels = Copying()
    rewritten(program(body, tensor(*shape)), kernels)
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


def test_what_lies_as_before_is_moved_nowhere() -> None:
    """Transpositions with a reshape between them, which together move nothing."""

    def body(b: Builder, x: Value) -> Value:
        split = b.transpose(b.reshape(x, (6, 1, 4, 5)), (2, 0, 3, 1))
        return b.transpose(b.reshape(split, (4, 6, 5)), (1, 0, 2))

    def one_moved(b: Builder, x: Value) -> Value:
        return b.transpose(b.reshape(body(b, x), (6, 20)), (1, 0))

    kernels, text = Copying(), ""
    for written, count in ((body, 0), (one_moved, 1)):
        text = rewritten(program(written, tensor(6, 20)), kernels).text
        assert text.count("stablehlo.transpose") == 0
        assert len(kernels.found) == count


@pytest.mark.parametrize("dtype", [item.name for item in dtypes.ALL])
def test_constants_of_every_type(dtype: str) -> None:
    """Bindings of MLIR do not read all of them."""

    def body(b: Builder, x: Value) -> Value:
        edge = b.broadcast_in_dim(b.reshape(b.slice(x, [0], [1], [1]), ()), (8,), [])
        same = b.constant(np.zeros(8, x.dtype.numpy))
        other = b.constant(np.arange(8).astype(x.dtype.numpy))
        return b.reverse(b.concatenate([x, same, other, edge], 0), [0])

    kernels = Copying()
    rewritten(program(body, tensor(8, dtype=dtype)), kernels)
    assert len(kernels.found) == 1
