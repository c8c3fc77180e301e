import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.errors import PjrtBridgeError, ProgramError
from pjrt_bridge.stablehlo import Builder
from tests.stablehlo.helpers import program, run, tensor


def bits(array):
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).tolist()


def every_value(dtype):
    """All values of narrow types, corner cases of wide ones."""
    if dtype.is_bool:
        return np.array([False, True, True])
    if dtype.is_integer and dtype.bits < 8:
        low = -(1 << (dtype.bits - 1)) if dtype.is_signed_integer else 0
        return np.arange(low, low + (1 << dtype.bits)).astype(dtype.numpy)
    if dtype.bits <= 8:
        return np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return np.array([info.min, info.max, 0, 1], dtype.numpy)
    if dtype.is_complex:
        return np.array([complex(np.nan, -0.0), complex(-np.inf, 1), -0.0], dtype.numpy)
    corners = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, 1e-40]).astype(dtype.numpy)
    payload = corners.view(f"u{dtype.itemsize}") | np.array(1, f"u{dtype.itemsize}")
    return np.concatenate([corners, payload.view(dtype.numpy)])


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_constants_keep_every_bit(dtype):
    array = every_value(dtype)
    outputs = run(
        lambda b: (
            b.constant(array),
            b.constant(array[:1]),
            b.constant(array[-1]),
            b.constant(np.broadcast_to(array[-1], (2, 3))),
            b.full((2, 2), array[-1], dtype),
            b.constant(np.zeros((0, 2), dtype.numpy)),
            b.constant(array[::-1][::2]),
        )
    )
    last = array[-1]
    expected = [
        array,
        array[:1],
        last,
        np.full((2, 3), last),
        np.full((2, 2), last),
        np.zeros((0, 2), dtype.numpy),
        array[::-1][::2],
    ]
    for output, wanted in zip(outputs, expected, strict=True):
        assert output.dtype == dtype.numpy
        assert output.shape == np.shape(wanted)
        assert bits(output) == bits(np.asarray(wanted, dtype.numpy))


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_arguments_and_results_keep_every_bit(dtype):
    array = every_value(dtype)
    assert bits(run(lambda b, x: x, array)) == bits(array)


WIDE = ["bool", "int8", "uint16", "int32", "uint64", "float32", "float64", "complex64"]


@settings(max_examples=40)
@given(st.data())
def test_any_array_round_trips(data):
    dtype = dtypes.of(data.draw(st.sampled_from(WIDE)))
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
    count = int(np.prod(shape)) * dtype.itemsize
    raw = data.draw(st.binary(min_size=count, max_size=count))
    if dtype.is_bool:
        array = (np.frombuffer(raw, np.uint8) % 2 == 1).reshape(shape)
    else:
        array = np.frombuffer(raw, dtype.numpy).reshape(shape)
    assert bits(run(lambda b: b.constant(array))) == bits(array)


def test_equal_elements_are_a_splat_and_zeros_of_both_signs_are_not():
    text = program(
        lambda b: (
            b.constant(np.full((100, 100), 7, np.int32)),
            b.constant(np.array([0.0, -0.0], np.float32)),
            b.constant(np.full(3, np.nan, np.float32)),
        )
    ).text
    assert "dense<7> : tensor<100x100xi32>" in text
    assert "dense<[0.000000e+00, -0.000000e+00]> : tensor<2xf32>" in text
    assert "dense<0x7FC00000> : tensor<3xf32>" in text


def test_types_of_python_values():
    builder = Builder()
    kinds = [str(builder.constant(v).type) for v in (True, 1, 1.0, 1j, [[1, 2]], np.float16(1))]
    assert kinds == ["i1[]", "i64[]", "f64[]", "complex<f64>[]", "i64[1,2]", "f16[]"]


def test_values_are_converted_to_the_wanted_type():
    out = run(lambda b: b.constant([1, 2.5, -3], "bfloat16"))
    assert out.astype("float32").tolist() == [1, 2.5, -3]
    assert run(lambda b: b.constant([0, 1], "bool")).tolist() == [False, True]
    assert run(lambda b: b.constant(np.array([1, 2], ">i4"), "int32")).tolist() == [1, 2]
    assert run(lambda b: b.constant(3.0, "int4")) == 3


@pytest.mark.parametrize(
    ("value", "dtype", "needle"),
    [
        (300, "int8", "do not fit int8"),
        (-1, "uint8", "do not fit uint8"),
        (8, "int4", "do not fit int4"),
        (2, "bool", "do not fit bool"),
        (0.5, "int32", "do not fit int32"),
        (2.0**63, "int64", "do not fit int64"),
        (float("nan"), "int64", "do not fit int64"),
        (1j, "float32", "complex values"),
        ("x", "float32", "cannot be float32"),
        (2**70, "int64", "cannot be int64"),
        ([[1], [1, 2]], "int64", "cannot become an array"),
        ("x", None, "no PJRT element type"),
        (1, "float99", "unknown element type"),
    ],
)
def test_values_that_do_not_fit(value, dtype, needle):
    with pytest.raises(PjrtBridgeError, match=needle):
        Builder().constant(value, dtype)


def test_full_wants_one_number():
    with pytest.raises(ProgramError, match=r"one number, found shape \(2,\)"):
        Builder().full((2,), [1, 2], "int32")


def test_large_constant_is_exact():
    array = np.random.default_rng(1).standard_normal((100, 100)).astype(np.float32)
    np.testing.assert_array_equal(run(lambda b, x: b.constant(array), np.float32(0)), array)
    built = program(lambda b, x: b.constant(array), tensor())
    assert len(built.bytecode()) < array.nbytes + 2000
