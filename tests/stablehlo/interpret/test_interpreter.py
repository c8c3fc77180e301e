import numpy as np
import pytest

from pjrt_bridge.errors import ProgramError, SignatureMismatch
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.interpret import interpretable
from pjrt_bridge.stablehlo.interpret.interpreter import (
    check,
    evaluate,
    evaluate_parallel,
    has_collectives,
)
from tests.plugins import run_python
from tests.stablehlo.helpers import program, tensor


def test_arguments_are_checked():
    built = program(lambda b, x: x, tensor(2))
    for arrays, needle in (
        ([], "has 1 parameters, found 0"),
        ([np.zeros(3, np.float32)], r"parameter 0 is f32\[2\], found an array f32\[3\]"),
        ([np.zeros(2)], r"parameter 0 is f32\[2\], found an array f64\[2\]"),
    ):
        with pytest.raises(SignatureMismatch, match=needle):
            evaluate(built, *arrays)


def test_mixed_parameters_cross_in_order():
    built = program(
        lambda b, x, z, i: (i, b.multiply(z, z), x),
        tensor(2, dtype="bfloat16"),
        tensor(dtype="complex128"),
        tensor(1, dtype="uint4"),
    )
    x, z, i = np.ones(2).astype(tensor(dtype="bfloat16").dtype.numpy), 1 + 2j, np.array([9])
    outputs = evaluate(built, x, np.asarray(z), i.astype(tensor(dtype="uint4").dtype.numpy))
    assert [o.tolist() for o in outputs] == [[9], z * z, [1, 1]]


def test_programs_with_several_functions():
    text = """
    module {
      func.func private @twice(%a: tensor<2xf32>) -> tensor<2xf32> {
        %0 = stablehlo.add %a, %a : tensor<2xf32>
        return %0 : tensor<2xf32>
      }
      func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {
        %0 = func.call @twice(%a) : (tensor<2xf32>) -> tensor<2xf32>
        %1 = func.call @twice(%0) : (tensor<2xf32>) -> tensor<2xf32>
        return %1 : tensor<2xf32>
      }
    }
    """
    (out,) = evaluate(Program.from_text(text), np.array([1, 2], np.float32))
    assert out.tolist() == [4, 8]


@pytest.mark.parametrize(
    ("body", "needle"),
    [
        (lambda b, x: b.custom_call("f", [x], [x.type]), "stablehlo.custom_call @f is not known"),
        (lambda b, x: b.cholesky(x, True), "stablehlo.cholesky is not known"),
        (lambda b, x: b.fft(x, "RFFT", [2]), "stablehlo.fft .*single precision.*f32"),
        (lambda b, x: b.compare(x, x, "EQ", total_order=True), "ignores TOTALORDER"),
        (
            lambda b, x: b.convolution(
                b.reshape(x, (1, 2, 2)),
                b.reshape(x, (2, 2, 1)),
                window_strides=[1],
                padding=[(0, 0)],
                dimension_numbers=("NCW", "OIW", "CNW"),
            ),
            "stablehlo.convolution .*feature dimension comes before",
        ),
        (
            lambda b, x: b.dot_general(
                b.slice(x, (0, 0), (2, 0)),
                b.slice(x, (0, 0), (0, 2)),
                lhs_contract=(1,),
                rhs_contract=(0,),
            ),
            "stablehlo.dot_general .*a sum over nothing",
        ),
        (
            lambda b, x: b.triangular_solve(
                *[b.reshape(x, (1, 2, 2))] * 2,
                left_side=True,
                lower=True,
                unit_diagonal=False,
                transpose_a="NO_TRANSPOSE",
            ),
            "stablehlo.triangular_solve .*on batches",
        ),
    ],
)
def test_what_would_end_the_process_is_refused(body, needle):
    built = program(body, tensor(2, 2))
    with pytest.raises(ProgramError, match=needle):
        evaluate(built, np.eye(2, dtype=np.float32))


def test_chlo_is_refused():
    text = """
    func.func public @main(%a: tensor<f32>) -> tensor<f32> {
      %0 = chlo.erf %a : tensor<f32> -> tensor<f32>
      return %0 : tensor<f32>
    }
    """
    with pytest.raises(ProgramError, match=r"chlo\.erf is not known"):
        evaluate(Program.from_text(text), np.float32(1))


def test_infinite_complex_parts_stay_apart():
    z = np.array([complex(np.inf, 1.0), complex(0.0, -np.inf)])
    (out,) = evaluate(program(lambda b, x: x, tensor(2, dtype="complex128")), z)
    np.testing.assert_array_equal(out.view(np.float64), z.view(np.float64))


def collective(op: str, rest: str, result: str = "tensor<2xf32>") -> Program:
    return Program.from_text(f"""
    func.func @main(%a: tensor<2xf32>) -> {result} {{
      %0 = "stablehlo.{op}"(%a) {rest} : (tensor<2xf32>) -> {result}
      return %0 : {result}
    }}
    """)


SUM = """({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %s = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %s : tensor<f32>
}}) {{replica_groups = dense<{groups}> : tensor<{rows}x{columns}xi64>}}"""


def test_processes_reduce_what_all_of_them_have():
    program = collective("all_reduce", SUM.format(groups="[[0, 1]]", rows=1, columns=2))
    assert has_collectives(program)
    rows = [[[np.full(2, 10.0**i, np.float32)]] for i in range(2)]
    # One core would not do: the interpreter's processes are the threads of a pool.
    if interpretable.threads() < 2:
        with pytest.raises(ProgramError, match="connects 2 processes"):
            evaluate_parallel(program, rows)
        return
    found = evaluate_parallel(program, rows)
    assert [row[0][0].tolist() for row in found] == [[11, 11]] * 2


@pytest.mark.skipif(interpretable.threads() < 2, reason="each process needs a thread")
@pytest.mark.parametrize("loop", [False, True])
def test_collectives_get_distinct_channels_or_are_refused(loop):
    swap = (
        '"stablehlo.collective_permute"(%{}) '
        "{{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}} "
        ": (tensor<2xf32>) -> tensor<2xf32>"
    )
    chain = "".join(f"%s{n} = {swap.format('a' if n == 0 else f's{n - 1}')}\n" for n in range(19))
    body = f"{chain} %r = stablehlo.add %a, %s18 : tensor<2xf32>"
    if loop:
        body = f"""
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %end = stablehlo.constant dense<19> : tensor<i32>
        %w:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, tensor<2xf32>
          cond {{
            %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %c : tensor<i1>
          }} do {{
            %n = stablehlo.add %i, %one : tensor<i32>
            %y = {swap.format("x")}
            stablehlo.return %n, %y : tensor<i32>, tensor<2xf32>
          }}
        %r = stablehlo.add %a, %w#1 : tensor<2xf32>"""
    program = Program.from_text(
        f"func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {{ {body}\n"
        "return %r : tensor<2xf32> }"
    )
    rows = [[[np.full(2, 10.0**i, np.float32)]] for i in range(2)]
    if loop:
        with pytest.raises(ProgramError, match="collective_permute is not in main itself"):
            evaluate_parallel(program, rows)
        return
    for _ in range(20):
        assert [row[0][0].tolist() for row in evaluate_parallel(program, rows)] == [[11, 11]] * 2


@pytest.mark.skipif(interpretable.threads() < 2, reason="each process needs a thread")
def test_processes_that_make_types_at_a_time():
    # Without locks in their context one call of some ten ended the process.
    run_python("""
        from pjrt_bridge.stablehlo import Program
        from pjrt_bridge.stablehlo.interpret.interpreter import evaluate_parallel
        program = Program.from_text('''
        func.func @main(%a: tensor<4x6xf32>) -> tensor<4x3xf32> {
          %0 = "stablehlo.reduce_scatter"(%a) ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %s = stablehlo.add %x, %y : tensor<f32>
            stablehlo.return %s : tensor<f32>
          }) {scatter_dimension = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}
            : (tensor<4x6xf32>) -> tensor<4x3xf32>
          return %0 : tensor<4x3xf32>
        }''')
        a = np.arange(24, dtype=np.float32).reshape(4, 6)
        for _ in range(300):
            (left,), (right,) = (row[0] for row in evaluate_parallel(program, [[[a]], [[2 * a]]]))
            assert np.array_equal(np.concatenate([left, right], 1), 3 * a)
    """)


def test_more_processes_than_threads_are_refused():
    count = interpretable.threads() + 1
    groups = str([list(range(count))])
    program = collective("all_reduce", SUM.format(groups=groups, rows=1, columns=count))
    with pytest.raises(ProgramError, match=f"connects {count} processes"):
        evaluate_parallel(program, [[[np.ones(2, np.float32)]]] * count)


def test_processes_know_their_place():
    program = Program.from_text("""
    func.func @main(%z: tensor<complex<f32>>)
        -> (tensor<ui32>, tensor<complex<f32>>, tensor<ui32>) {
      %0 = stablehlo.replica_id : tensor<ui32>
      %1 = stablehlo.partition_id : tensor<ui32>
      return %0, %z, %1 : tensor<ui32>, tensor<complex<f32>>, tensor<ui32>
    }
    """)
    grid = [[[np.complex64(10 * i + 1j * j)] for j in range(3)] for i in range(2)]
    found = evaluate_parallel(program, grid)
    assert [[[o.item() for o in outputs] for outputs in row] for row in found] == [
        [[i, 10 * i + 1j * j, j] for j in range(3)] for i in range(2)
    ]


def test_collectives_need_processes_and_groups_of_them():
    # Where they were not refused the interpreter would end this process.
    program = collective("all_reduce", SUM.format(groups="[[0, 1]]", rows=1, columns=2))
    one = [[[np.ones(2, np.float32)]]]
    with pytest.raises(ProgramError, match="all_reduce is not known"):
        evaluate(program, np.ones(2, np.float32))
    with pytest.raises(ProgramError, match=r"groups \[0, 1\], which are not the 1 processes"):
        evaluate_parallel(program, one)
    swap = collective(
        "collective_permute",
        "{source_target_pairs = dense<[[0, 5]]> : tensor<1x2xi64>}",
    )
    with pytest.raises(ProgramError, match="there are 1"):
        evaluate_parallel(swap, one)


def test_a_custom_call_is_refused_by_its_name():
    program = collective("custom_call", '{call_target_name = "mylib.twice"}')
    with pytest.raises(ProgramError, match=r"custom_call @mylib\.twice is not known"):
        check(program)
