"""Collective operations that are read from optimized programs."""

from __future__ import annotations

import pytest

from pjrt_bridge import client
from pjrt_bridge.runtime import ShardedExecutable
from pjrt_bridge.runtime.objects.collectives import Collective, collectives_in
from pjrt_bridge.stablehlo import Mesh, Program, Sharding, shard
from pjrt_bridge.wire import message, text, varint


def shape(kind: int, *sizes: int) -> bytes:
    return varint(2, kind) + message(3, bytes(sizes))


def tuple_of(*shapes: bytes) -> bytes:
    return varint(2, 13) + b"".join(message(4, one) for one in shapes)


def module(*instructions: tuple[str, bytes]) -> bytes:
    return message(
        3,
        b"".join(
            message(2, text(1, "x") + text(2, operation) + message(3, one))
            for operation, one in instructions
        ),
    )


def test_results_are_counted_once() -> None:
    code = module(
        ("add", shape(11, 100)),
        ("all-reduce", tuple_of(shape(11, 2, 3), shape(16, 4))),
        ("all-reduce", shape(12, 2)),
        ("all-gather-start", tuple_of(shape(11, 2), shape(11, 8))),
        ("all-gather-done", shape(11, 8)),
        ("reduce-scatter", shape(21, 3)),
    )
    expected = (
        Collective("all-reduce", 2, 24 + 8 + 16),
        Collective("all-gather", 1, 32),
        Collective("reduce-scatter", 1, 2),
    )
    assert collectives_in(code, "hlo") == expected
    assert collectives_in(message(1, code) + message(2, b""), "hlo_with_config") == expected
    assert collectives_in(code, "hsaco") == ()
    with pytest.raises(ValueError, match="field"):
        collectives_in(b"\x1a\x05", "hlo")
    with pytest.raises(ValueError, match="program"):
        collectives_in(b"module {", "mlir")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (("dp",), (Collective("all-reduce", 1, 512),)),
        ((), (Collective("all-gather", 1, 1024), Collective("all-reduce", 1, 512))),
    ],
)
def test_a_partitioner_adds_them(spec: tuple[str, ...], expected: tuple[Collective, ...]) -> None:
    """A product whose sum is divided: each device has 4x32 floats of the sum, 8x32 of the whole."""
    program = Program.parse("""
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>) -> tensor<8x32xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  return %0 : tensor<8x32xf32>
}""")
    mesh = Mesh.of({"dp": 2, "tp": 2})
    x, w = Sharding.of(mesh, ("dp", "tp"), 2), Sharding.of(mesh, ("tp",), 2)
    divided = shard(program, mesh, [x, w], [Sharding.of(mesh, spec, 2)])
    found = ShardedExecutable(client("cpu", cpu_device_count=4), divided)
    assert found.executable.collectives() == expected
