"""Estimates of what programs cost, on programs whose cost can be counted by hand."""

from __future__ import annotations

from pjrt_bridge.stablehlo import Mesh, Program, Sharding, shard
from pjrt_bridge.stablehlo.cost import Cost, communicated, estimate

F32 = 4


def cost(body: str, parameters: str, results: str) -> Cost:
    text = f"func.func @main({parameters}) -> ({results}) {{ {body} }}"
    return estimate(Program.parse(text))


def test_products_and_what_is_fused() -> None:
    found = cost(
        """
        %one = stablehlo.constant dense<1.0> : tensor<8x32xf32>
        %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
            : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
        %1 = stablehlo.add %0, %one : tensor<8x32xf32>
        %2 = stablehlo.tanh %1 : tensor<8x32xf32>
        return %2 : tensor<8x32xf32>
        """,
        "%x: tensor<8x16xf32>, %w: tensor<16x32xf32>",
        "tensor<8x32xf32>",
    )
    product = 8 * 32
    assert found.flops == 2 * product * 16 + 2 * product
    # The sum is fused with its only reader; the product is written and read.
    assert found.temporaries == product * F32
    # tanh is fused with the sum, and written as the result.
    assert found.bytes_accessed == F32 * (8 * 16 + 16 * 32 + 3 * product)


def test_a_reshape_is_the_value_that_it_reads() -> None:
    """A value with several readers is written, and read by each, whichever shape they read."""
    three = """
        %a = stablehlo.sine %v : tensor<4x8xf32>
        %b = stablehlo.cosine %v : tensor<4x8xf32>
        %c = stablehlo.multiply %a, %b : tensor<4x8xf32>
        return %c : tensor<4x8xf32>
    """
    merged = cost(
        f"""
        %0 = stablehlo.add %x, %x : tensor<32xf32>
        %v = stablehlo.reshape %0 : (tensor<32xf32>) -> tensor<4x8xf32>
        {three}
        """,
        "%x: tensor<32xf32>",
        "tensor<4x8xf32>",
    )
    direct = cost(
        f"%v = stablehlo.add %x, %x : tensor<4x8xf32>\n{three}",
        "%x: tensor<4x8xf32>",
        "tensor<4x8xf32>",
    )
    assert merged.bytes_accessed == direct.bytes_accessed == 5 * 32 * F32
    assert merged.temporaries == direct.temporaries == 32 * F32


def test_convolutions() -> None:
    found = cost(
        """
        %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0],
            window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
            : (tensor<2x3x10xf32>, tensor<5x3x3xf32>) -> tensor<2x5x10xf32>
        return %0 : tensor<2x5x10xf32>
        """,
        "%x: tensor<2x3x10xf32>, %w: tensor<5x3x3xf32>",
        "tensor<2x5x10xf32>",
    )
    assert found.flops == 2 * (2 * 5 * 10) * (3 * 3)


def test_memory_is_free_after_the_last_reader() -> None:
    chain = "\n".join(
        f"%{at} = stablehlo.dot_general %{'x' if at == 0 else at - 1}, %w, "
        "contracting_dims = [1] x [0] : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>"
        for at in range(10)
    )
    parameters = "%x: tensor<16x16xf32>, %w: tensor<16x16xf32>"
    one = 16 * 16 * F32
    last = cost(f"{chain}\nreturn %9 : tensor<16x16xf32>", parameters, "tensor<16x16xf32>")
    # What an operation reads is there while it writes; the last value is a result.
    assert last.temporaries == 2 * one
    kept = "\n".join(f"%s{at} = stablehlo.add %{at}, %{at} : tensor<16x16xf32>" for at in range(9))
    names = ", ".join([*(f"%s{at}" for at in range(9)), "%9"])
    kinds = ", ".join(["tensor<16x16xf32>"] * 10)
    all_kept = cost(f"{chain}\n{kept}\nreturn {names} : {kinds}", parameters, kinds)
    assert all_kept.temporaries == 9 * one


LOOP = """
    %zero = stablehlo.constant dense<0> : tensor<i64>
    %one = stablehlo.constant dense<1> : tensor<i64>
    %two = stablehlo.constant dense<2> : tensor<i64>
    %steps = stablehlo.constant dense<{steps}> : tensor<i64>
    %made = stablehlo.constant dense<0.0> : tensor<{steps}x16xf32>
    %0:3 = stablehlo.while(%i = {first}, %h = %h0, %m = %made)
        : tensor<i64>, tensor<16xf32>, tensor<{steps}x16xf32>
    cond {{
      %t = stablehlo.compare LT, %i, %steps : (tensor<i64>, tensor<i64>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
    }} do {{
      %r = stablehlo.dynamic_slice %x, %i, %zero, sizes = [1, 16]
          : (tensor<{steps}x16xf32>, tensor<i64>, tensor<i64>) -> tensor<1x16xf32>
      %v = stablehlo.reshape %r : (tensor<1x16xf32>) -> tensor<16xf32>
      %p = stablehlo.dot_general %h, %w, contracting_dims = [0] x [0]
          : (tensor<16xf32>, tensor<16x16xf32>) -> tensor<16xf32>
      %a = stablehlo.add %v, %p : tensor<16xf32>
      %b = stablehlo.reshape %a : (tensor<16xf32>) -> tensor<1x16xf32>
      %n = stablehlo.dynamic_update_slice %m, %b, %i, %zero
          : (tensor<{steps}x16xf32>, tensor<1x16xf32>, tensor<i64>, tensor<i64>)
          -> tensor<{steps}x16xf32>
      %j = stablehlo.add {step}, %i : tensor<i64>
      stablehlo.return %j, %a, %n : tensor<i64>, tensor<16xf32>, tensor<{steps}x16xf32>
    }}
    return %0#2 : tensor<{steps}x16xf32>
"""


def loop(steps: int, step: str = "%one", first: str = "%zero") -> Cost:
    return cost(
        LOOP.format(steps=steps, step=step, first=first),
        f"%x: tensor<{steps}x16xf32>, %w: tensor<16x16xf32>, %h0: tensor<16xf32>, "
        "%count: tensor<i64>",
        f"tensor<{steps}x16xf32>",
    )


def test_loops_over_a_known_number_of_turns_count_each_turn() -> None:
    one, many = loop(1), loop(100)
    turn = 2 * 16 * 16 + 16 + 1 + 1  # the product, the sum, the counter and its comparison
    assert (one.flops, many.flops) == (turn, 100 * turn)
    assert loop(100, step="%two").flops == 50 * turn
    assert loop(100, first="%steps").flops == 0
    # Neither where the loop begins nor how far it counts is known.
    assert loop(100, first="%count").flops == loop(100, step="%count").flops == turn
    # A turn reads the weights and one row, and writes one row: not the whole arrays.
    rows = 100 * 16 * F32
    weights = 100 * 16 * 16 * F32
    assert weights + 2 * rows < many.bytes_accessed < weights + 10 * rows


def test_bodies_of_other_loops_count_once() -> None:
    found = cost(
        """
        %0 = stablehlo.while(%i = %x) : tensor<16x16xf32>
        cond {
          %t = stablehlo.constant dense<false> : tensor<i1>
          stablehlo.return %t : tensor<i1>
        } do {
          %a = stablehlo.dot_general %i, %w, contracting_dims = [1] x [0]
              : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
          %b = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
              : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
          stablehlo.return %b : tensor<16x16xf32>
        }
        return %0 : tensor<16x16xf32>
        """,
        "%x: tensor<16x16xf32>, %w: tensor<16x16xf32>",
        "tensor<16x16xf32>",
    )
    assert found.flops == 2 * 2 * 16**3
    assert found.temporaries == 16 * 16 * F32


def test_what_devices_exchange() -> None:
    program = Program.parse("""
    func.func @main(%x: tensor<4x8xf32>) -> tensor<8x8xf32> {
      %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64,
          replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}>
          : (tensor<4x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }""")
    assert communicated(program.bytecode()) == {"all-gather": [8 * 8 * F32]}


def summed_over_devices(body: str, *results: Sharding) -> Cost:
    """Of products of batches that are divided over four devices, whose sums all devices need."""
    signature = ", ".join("tensor<32x32xf32>" for _ in results)
    program = Program.parse(f"""
    func.func @main(%x: tensor<64x32xf32>, %y: tensor<64x32xf32>) -> ({signature}) {{
      %0 = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
          : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<32x32xf32>
      %1 = stablehlo.dot_general %y, %x, contracting_dims = [0] x [0]
          : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<32x32xf32>
      {body}
    }}""")
    return estimate(shard(program, MESH, [ROWS, ROWS], results).program)


MESH = Mesh.of({"fsdp": 4})
ROWS = Sharding.of(MESH, ["fsdp", None], 2)


def test_of_a_sum_over_devices_that_is_divided_the_parts_are_kept() -> None:
    square = 32 * 32 * F32
    # Both parts are kept until they are multiplied, so that one is there while the other is made
    # of a product and of its sum over the devices.
    found = summed_over_devices(
        """
        %2 = stablehlo.multiply %0, %1 : tensor<32x32xf32>
        %3 = stablehlo.tanh %2 : tensor<32x32xf32>
        return %3 : tensor<32x32xf32>
        """,
        ROWS,
    )
    assert found.exchanged == {"all-reduce": [square, square]}
    assert found.temporaries == 2 * square + square // 4
    arguments = 2 * 64 * 32 * F32 // 4
    # Each product, its sum and the part of that are written and read, of the sum a part.
    assert found.bytes_accessed == arguments + 2 * (3 * square + 3 * square // 4) + square // 4


def test_a_part_that_is_a_result_is_no_temporary() -> None:
    square = 32 * 32 * F32
    found = summed_over_devices("return %0, %1 : tensor<32x32xf32>, tensor<32x32xf32>", ROWS, ROWS)
    assert found.temporaries == 2 * square
    assert found.exchanged == {"all-reduce": [square, square]}


def test_a_sum_over_devices_that_is_needed_whole_has_no_parts_of_its_own() -> None:
    rows, whole = '@mesh, [{"fsdp"}, {}]', "@mesh, [{}, {}]"
    given = f"tensor<64x32xf32> {{sdy.sharding = #sdy.sharding<{rows}>}}"
    square = 32 * 32 * F32
    found = estimate(
        Program.parse(f"""
        sdy.mesh @mesh = <["fsdp"=4]>
        func.func @main(%x: {given}, %y: {given})
            -> (tensor<32x32xf32> {{sdy.sharding = #sdy.sharding<{rows}>}},
                tensor<32x32xf32> {{sdy.sharding = #sdy.sharding<{whole}>}}) {{
          %0 = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
              {{sdy.sharding = #sdy.sharding_per_value<[<{whole}>]>}}
              : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<32x32xf32>
          %1 = sdy.all_slice [{{"fsdp"}}, {{}}] %0 out_sharding=<{rows}> : tensor<32x32xf32>
          %2 = stablehlo.tanh %1 {{sdy.sharding = #sdy.sharding_per_value<[<{rows}>]>}}
              : tensor<32x32xf32>
          %3 = stablehlo.tanh %0 {{sdy.sharding = #sdy.sharding_per_value<[<{whole}>]>}}
              : tensor<32x32xf32>
          return %2, %3 : tensor<32x32xf32>, tensor<32x32xf32>
        }}""")
    )
    assert found.exchanged == {"all-reduce": [square]}
    assert found.temporaries == 2 * square
    arguments = 2 * 64 * 32 * F32 // 4
    # The product is written and read, its sum is written, read whole and in part.
    assert found.bytes_accessed == arguments + 4 * square + square // 4 + (square + square // 4)
