import ml_dtypes
import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from tests.stablehlo.helpers import program, run, tensor

X = np.array([[3, 1, 2], [5, 4, 6]])


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1), ()])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float32", "float64"])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_reductions(name, dtype, dims):
    x = X.astype(dtype)
    out = run(lambda b, v: getattr(b, f"reduce_{name}")(v, dims), x)
    expected = getattr(np, name)(x, axis=dims, **({"dtype": dtype} if name in "sumprod" else {}))
    np.testing.assert_array_equal(out, expected.astype(dtype))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32"])
def test_logical_reductions(dtype):
    x = np.array([[3, 1], [1, 0], [1, 1]]).astype(dtype)
    both = run(lambda b, v: (b.reduce_and(v, (1,)), b.reduce_or(v, (1,))), x)
    np.testing.assert_array_equal(both[0], np.bitwise_and.reduce(x, 1))
    np.testing.assert_array_equal(both[1], np.bitwise_or.reduce(x, 1))


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if not d.is_complex], ids=str)
def test_extremes_of_nothing_are_identities(dtype):
    def body(b, x):
        return b.reduce_max(x, (0,)), b.reduce_min(x, (0,))

    lowest, highest = run(body, np.zeros((0,), dtype.numpy))
    if dtype.is_bool:
        assert (bool(lowest), bool(highest)) == (False, True)
        return
    info = ml_dtypes.iinfo if dtype.is_integer else ml_dtypes.finfo
    limits = info(dtype.numpy)
    # The largest value of the type can be no more than the identity of min.
    assert float(lowest) <= float(limits.min)
    assert float(highest) >= float(limits.max)
    infinite = dtype.is_float and np.isinf(np.array(np.inf, np.float32).astype(dtype.numpy))
    assert np.isinf(float(highest)) == infinite


def test_nan_wins_in_maximum():
    x = np.array([1.0, np.nan, 2.0])
    assert np.isnan(run(lambda b, v: b.reduce_max(v, (0,)), x))


def test_reduce_of_two_operands_finds_the_index_of_the_maximum():
    x = np.array([[1.0, 5.0, 2.0], [7.0, 0.0, 3.0]])

    def body(b, v):
        def larger(old, new):
            keep = b.compare(old[0], new[0], "GE")
            return [b.select(keep, o, n) for o, n in zip(old, new, strict=True)]

        inits = [b.full((), -np.inf, "float64"), b.full((), 0, "int32")]
        return b.reduce([v, b.iota(v.shape, 1, "int32")], inits, (1,), larger)

    values, places = run(body, x)
    np.testing.assert_array_equal(values, x.max(1))
    np.testing.assert_array_equal(places, x.argmax(1))


def test_body_may_use_outer_values():
    out = run(
        lambda b, v, s: b.reduce(
            [v], [b.full((), 0, "float64")], (0,), lambda o, n: b.add(o[0], b.multiply(n[0], s))
        ),
        np.arange(4.0),
        np.array(10.0),
    )
    assert out == 60.0


def windows(b, v, **kwargs):
    arguments = {"window_dimensions": (1, 2), "window_strides": (1, 2), "padding": [(0, 0)] * 2}
    arguments.update(kwargs)
    zero = b.full((), 0, "float64")
    return b.reduce_window([v], [zero], lambda o, n: b.add(o[0], n[0]), **arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [[1, 5]]),
        ({"window_strides": (1, 1)}, [[1, 3, 5]]),
        ({"padding": [(0, 0), (1, 1)]}, [[0, 3, 3]]),
        ({"window_dilations": (1, 2), "window_strides": (1, 1)}, [[2, 4]]),
        ({"base_dilations": (1, 2), "window_strides": (1, 1)}, [[0, 1, 1, 2, 2, 3]]),
        ({"window_dimensions": (1, 9)}, [[]]),
        ({"padding": [(0, 0), (-1, 0)]}, [[3]]),
    ],
)
def test_reduce_window(arguments, expected):
    x = np.arange(4.0).reshape(1, 4)
    out = run(lambda b, v: windows(b, v, **arguments), x)
    np.testing.assert_array_equal(out, np.array(expected, np.float64).reshape(1, -1))


def test_select_and_scatter_is_the_gradient_of_max_pooling():
    x = np.array([[1.0, 3.0, 2.0, 0.0]])
    out = run(
        lambda b, v, s: b.select_and_scatter(
            v,
            s,
            b.full((), 0, "float64"),
            lambda u, w: b.compare(u, w, "GE"),
            b.add,
            window_dimensions=(1, 2),
            window_strides=(1, 2),
            padding=[(0, 0), (0, 0)],
        ),
        x,
        np.array([[10.0, 20.0]]),
    )
    np.testing.assert_array_equal(out, [[0, 10, 20, 0]])


def test_sort_with_payload_is_stable():
    keys = np.array([[2, 1, 2, 0]], np.int32)

    def body(b, v):
        places = b.iota(v.shape, 1, "int32")
        return b.sort([v, places], 1, lambda left, right: b.compare(left[0], right[0], "LT"))

    values, places = run(body, keys)
    np.testing.assert_array_equal(values, np.sort(keys))
    np.testing.assert_array_equal(places, np.argsort(keys, stable=True))


def test_while_counts():
    def body(b, n):
        one = b.full((), 1, "int32")
        return b.while_(
            [n, b.full((), 1, "int32")],
            lambda carry: b.compare(carry[0], one, "GT"),
            lambda carry: [b.subtract(carry[0], one), b.multiply(carry[1], carry[0])],
        )

    left, factorial = run(body, np.array(5, np.int32))
    assert (int(left), int(factorial)) == (1, 120)


@pytest.mark.parametrize(("condition", "expected"), [(True, 2.0), (False, -1.0)])
def test_if(condition, expected):
    out = run(
        lambda b, p, x: b.if_(p, lambda: b.add(x, x), lambda: [b.negate(x)]),
        np.array(condition),
        np.array(1.0),
    )
    assert out == expected


@pytest.mark.parametrize(("index", "expected"), [(0, 0), (1, 10), (2, 20), (-1, 20), (7, 20)])
def test_case(index, expected):
    def body(b, i):
        return b.case(i, [lambda n=n: b.full((), 10 * n, "int64") for n in range(3)])

    assert run(body, np.array(index, np.int32)) == expected


def test_nested_regions():
    def body(b, x):
        def row(carry):
            doubled = b.if_(
                b.compare(carry[0], b.full((), 2, "int32"), "LT"),
                lambda: b.reduce_sum(x, (0,)),
                lambda: b.full((), -1, "float64"),
            )
            return [b.add(carry[0], b.full((), 1, "int32")), b.add(carry[1], doubled[0])]

        limit = b.full((), 3, "int32")
        inits = [b.full((), 0, "int32"), b.full((), 0, "float64")]
        return b.while_(inits, lambda c: b.compare(c[0], limit, "LT"), row)

    _, total = run(body, np.arange(4.0))
    assert total == 6 + 6 - 1


@pytest.mark.parametrize(
    ("call", "needle"),
    [
        (lambda b, x: b.reduce_sum(x, (2,)), "dims must be distinct"),
        (lambda b, x: b.reduce_sum(x, (-1,)), "dims must be distinct"),
        (lambda b, x: b.reduce([], [], (0,), lambda o, n: o), "at least one operand"),
        (lambda b, x: b.reduce([x], [], (0,), lambda o, n: o), "inits needs 1"),
        (lambda b, x: b.reduce([x], [x], (0,), lambda o, n: o), "stablehlo.reduce"),
        (
            lambda b, x: b.reduce([x], [b.full((), 0, "float32")], (0,), lambda o, n: []),
            "stablehlo.reduce",
        ),
        (lambda b, x: b.reduce_and(x, (0,)), "integer or boolean"),
        (lambda b, x: b.reduce_max(b.complex_(x, x), (0,)), "no order"),
        (lambda b, x: b.sort([x], 0, lambda left, right: left[0]), "stablehlo.sort"),
        (lambda b, x: b.while_([x], lambda c: c[0], lambda c: c), "stablehlo.while"),
        (
            lambda b, x: b.if_(b.full((), True, "bool"), lambda: x, lambda: b.reshape(x, (6,))),
            "stablehlo.if",
        ),
        (lambda b, x: b.case(b.full((), 0, "int32"), []), "at least one branch"),
        (lambda b, x: b.optimization_barrier([]), "at least one operand"),
        (lambda b, x: windows(b, x, window_strides=(0, 1)), ">= 1"),
        (lambda b, x: windows(b, x, padding=[(0, 0)]), "padding needs 2"),
    ],
)
def test_malformed_structured_operations(call, needle):
    def body(b, x):
        with pytest.raises(ProgramError, match=needle):
            call(b, x)
        return x

    text = program(body, tensor(2, 3)).text
    assert not any(op in text for op in ("reduce", "sort", "while", "stablehlo.if"))


def test_a_body_that_raises_leaves_nothing_behind():
    def body(b, x):
        def broken(old, new):
            b.add(old[0], new[0])
            raise RuntimeError("from the body")

        with pytest.raises(RuntimeError, match="from the body"):
            b.reduce([x], [b.full((), 0, "float32")], (0,), broken)
        return b.negate(x)

    text = program(body, tensor(2)).text
    assert "stablehlo.reduce" not in text
    assert "stablehlo.add" not in text
    assert "stablehlo.negate" in text


def test_values_of_a_region_stay_inside():
    def body(b, x):
        seen = []
        b.while_([x], lambda c: b.full((), False, "bool"), lambda c: seen.append(c[0]) or c)
        with pytest.raises(ProgramError, match=r"stablehlo.negate: operand 0 .* out of scope"):
            b.negate(seen[0])
        return x

    program(body, tensor(2))


def test_a_barrier_gives_the_values_themselves():
    x, y = X.astype("float32"), np.arange(3)
    found = run(lambda b, v, w: b.optimization_barrier([v, w]), x, y)
    np.testing.assert_array_equal(found[0], x)
    np.testing.assert_array_equal(found[1], y)
    text = program(lambda b, v: b.optimization_barrier([v]), tensor(2)).text
    assert "stablehlo.optimization_barrier" in text


def test_a_stored_value_is_itself_by_a_function_that_is_not_inlined():
    x, y, z = X.astype("float32"), np.arange(3), np.ones((2, 3), "float32")
    found = run(lambda b, *values: [b.stored(value) for value in values], x, y, z)
    for value, expected in zip(found, (x, y, z), strict=True):
        np.testing.assert_array_equal(value, expected)
    written = program(
        lambda b, v, w: b.add(b.stored(v), b.stored(b.negate(w))), tensor(2), tensor(2)
    )
    # One function for each type.
    assert written.text.count("func.func private") == 1
    assert written.text.count('inlineable = "false"') == 2
