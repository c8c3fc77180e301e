from collections.abc import Callable

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from tests.stablehlo.helpers import program, run, tensor

F32 = dtypes.of("float32")
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("call", "reference"),
    [
        (lambda b, x: b.reshape(x, (4, 6)), lambda x: x.reshape(4, 6)),
        (lambda b, x: b.reshape(x, (24, 1)), lambda x: x.reshape(24, 1)),
        (lambda b, x: b.transpose(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
        (
            lambda b, x: b.broadcast_in_dim(x, (5, 2, 3, 4), (1, 2, 3)),
            lambda x: np.broadcast_to(x, (5, 2, 3, 4)),
        ),
        (lambda b, x: b.slice(x, (0, 1, 0), (2, 3, 4)), lambda x: x[:, 1:3]),
        (
            lambda b, x: b.slice(x, (0, 0, 0), (2, 3, 4), (1, 2, 3)),
            lambda x: x[:, ::2, ::3],
        ),
        (lambda b, x: b.slice(x, (0, 1, 0), (2, 1, 4)), lambda x: x[:, 1:1]),
        (lambda b, x: b.reverse(x, (0, 2)), lambda x: x[::-1, :, ::-1]),
        (lambda b, x: b.concatenate([x, x, x], 1), lambda x: np.concatenate([x, x, x], 1)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_shape_ops(call, reference, dtype):
    x = X.astype(dtype)
    np.testing.assert_array_equal(run(call, x), reference(x))


def test_broadcast_of_unit_and_scalar():
    x = np.array([[1.0], [2.0]], np.float32)
    out = run(lambda b, v: b.broadcast_in_dim(v, (2, 3), (0, 1)), x)
    np.testing.assert_array_equal(out, np.broadcast_to(x, (2, 3)))
    out = run(lambda b, v: b.broadcast_in_dim(v, (2, 3), ()), np.array(7, np.int32))
    np.testing.assert_array_equal(out, np.full((2, 3), 7))


def test_iota():
    out = run(lambda b: b.iota((2, 3), 1, "int64"))
    np.testing.assert_array_equal(out, np.broadcast_to(np.arange(3), (2, 3)))
    out = run(lambda b: b.iota((2, 3), 0, "float16"))
    np.testing.assert_array_equal(out, np.array([[0] * 3, [1] * 3]))


def test_pad_edges_interior_and_negative():
    x, nine = np.arange(3.0), np.array(9.0)
    out = run(lambda b, v, p: b.pad(v, p, (1,), (2,), (1,)), x, nine)
    assert out.tolist() == [9, 0, 9, 1, 9, 2, 9, 9]
    out = run(lambda b, v, p: b.pad(v, p, (-1,), (1,)), x, nine)
    assert out.tolist() == [1, 2, 9]


def test_dynamic_slices_clamp():
    i, j = np.array(1, np.int32), np.array(9, np.int32)
    x = np.arange(12.0).reshape(3, 4)
    out = run(lambda b, v, r, c: b.dynamic_slice(v, [r, c], (2, 2)), x, i, j)
    np.testing.assert_array_equal(out, x[1:3, 2:4])
    update = np.full((2, 2), -1.0)
    out = run(lambda b, v, u, r, c: b.dynamic_update_slice(v, u, [r, c]), x, update, i, j)
    expected = x.copy()
    expected[1:3, 2:4] = -1
    np.testing.assert_array_equal(out, expected)


def test_gather_rows():
    x, rows = np.arange(12.0).reshape(4, 3), np.array([2, 0, 3], np.int32)
    out = run(
        lambda b, v, i: b.gather(
            v,
            i,
            offset_dims=[1],
            collapsed_slice_dims=[0],
            start_index_map=[0],
            index_vector_dim=1,
            slice_sizes=[1, 3],
        ),
        x,
        rows,
    )
    np.testing.assert_array_equal(out, x[rows])


def test_gather_with_batching_dims():
    x, picks = np.arange(12.0).reshape(3, 4), np.array([1, 3, 0])
    out = run(
        lambda b, v, i: b.gather(
            v,
            i,
            offset_dims=[],
            collapsed_slice_dims=[1],
            operand_batching_dims=[0],
            start_indices_batching_dims=[0],
            start_index_map=[1],
            index_vector_dim=1,
            slice_sizes=[1, 1],
            indices_are_sorted=False,
        ),
        x,
        picks,
    )
    np.testing.assert_array_equal(out, x[np.arange(3), picks])


def scatter_add(b, xs, i, updates):
    return b.scatter(
        xs,
        i,
        updates,
        lambda old, new: [b.add(o, n) for o, n in zip(old, new, strict=True)],
        update_window_dims=[1],
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
        index_vector_dim=1,
    )


def test_scatter_adds_duplicates_and_ignores_outsiders():
    x, rows = np.zeros((3, 2), np.float32), np.array([1, 1, 7], np.int32)
    update = np.array([[1, 2], [10, 20], [5, 5]], np.float32)
    (out,) = [run(lambda b, v, i, u: scatter_add(b, [v], i, [u]), x, rows, update)]
    np.testing.assert_array_equal(out, [[0, 0], [11, 22], [0, 0]])


def test_scatter_of_two_operands_leaves_them_alone():
    x, rows = np.zeros((2, 2), np.float32), np.array([1], np.int32)
    first, second, before = run(
        lambda b, v, i, u: (*scatter_add(b, [v, v], i, [u, b.negate(u)]), v),
        x,
        rows,
        np.ones((1, 2), np.float32),
    )
    np.testing.assert_array_equal(first, [[0, 0], [1, 1]])
    np.testing.assert_array_equal(second, -first)
    np.testing.assert_array_equal(before, x)


@pytest.mark.parametrize(
    ("call", "needle"),
    [
        (lambda b, x: b.reshape(x, (5,)), "reshape"),
        (lambda b, x: b.reshape(x, (-1, 6)), "must be >= 0"),
        (lambda b, x: b.transpose(x, (0, 0)), "transpose"),
        (lambda b, x: b.broadcast_in_dim(x, (3, 2), (0, 1)), "broadcast_in_dim"),
        (lambda b, x: b.slice(x, (0, 0), (2, 9)), "slice"),
        (lambda b, x: b.concatenate([x, b.reshape(x, (3, 2))], 0), "concatenate"),
        (lambda b, x: b.concatenate([], 0), "at least one operand"),
        (lambda b, x: b.pad(x, x, (0, 0), (0, 0)), "pad"),
        (lambda b, x: b.reverse(x, (5,)), "reverse"),
        (lambda b, x: b.dynamic_slice(x, [], (1, 1)), "dynamic_slice"),
        (lambda b, x: scatter_add(b, [x], b.constant([0], "int32"), []), "updates needs 1"),
    ],
)
def test_malformed_shape_operations(call, needle):
    def body(b, x):
        with pytest.raises(ProgramError, match=needle):
            call(b, x)
        return x

    program(body, tensor(2, 3))


def test_a_value_knows_whose_elements_it_has():
    def body(b, x):
        turned = b.transpose(x, (2, 0, 1))
        flat = b.reshape(turned, (4, 6))
        assert (turned.origin.value, turned.origin.permutation) == (x, (2, 0, 1))
        assert (flat.origin.value, flat.origin.permutation) == (turned, None)
        assert x.origin is None
        assert b.tanh(flat).origin is None
        return flat

    np.testing.assert_array_equal(run(body, X), X.transpose(2, 0, 1).reshape(4, 6))


def test_the_same_transposition_is_made_once_where_it_can_be_seen():
    def body(b, x):
        once = b.transpose(x, (2, 0, 1))
        assert b.transpose(x, (2, 0, 1)) is once
        assert b.transpose(x, (1, 0, 2)) is not once
        with b.scratch([x.type]) as (y,):
            assert b.transpose(y, (2, 0, 1)) is not once
        return once

    np.testing.assert_array_equal(run(body, X), X.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("low", lambda b, x: b.pad(x, b.full((), 0, F32), [], [0])),
        ("high", lambda b, x: b.pad(x, b.full((), 0, F32), [0], [])),
        ("interior", lambda b, x: b.pad(x, b.full((), 0, F32), [0], [0], [0, 0])),
        ("start", lambda b, x: b.slice(x, [], [1])),
        ("limit", lambda b, x: b.slice(x, [0], [])),
        ("strides", lambda b, x: b.slice(x, [0], [1], [])),
    ],
)
def test_numbers_for_another_rank_are_refused(
    name: str, call: Callable[[Builder, Value], Value]
) -> None:
    """MLIR reads behind arrays that are too short."""
    builder = Builder([TensorType((4,), F32)])
    with pytest.raises(ProgramError, match=f"{name} needs 1 entries"):
        call(builder, builder.parameters[0])
