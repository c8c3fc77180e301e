import ml_dtypes
import numpy as np
import pytest

from pjrt_bridge.errors import ProgramError
from tests.stablehlo.helpers import program, run, tensor

RNG = np.random.default_rng(0)


def integers(*shape, dtype="float32"):
    return RNG.integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64"])
def test_matmul(dtype):
    a, b = integers(3, 4, dtype=dtype), integers(4, 5, dtype=dtype)
    out = run(lambda c, x, y: c.dot_general(x, y, lhs_contract=[1], rhs_contract=[0]), a, b)
    np.testing.assert_array_equal(out, a @ b)


def test_batched_dot_orders_batch_then_lhs_then_rhs():
    a, b = integers(3, 2, 4), integers(4, 5, 2)
    out = run(
        lambda c, x, y: c.dot_general(
            x, y, lhs_batch=[1], rhs_batch=[2], lhs_contract=[2], rhs_contract=[0]
        ),
        a,
        b,
    )
    np.testing.assert_array_equal(out, np.einsum("iba,ajb->bij", a, b))


def test_dot_accumulates_in_the_output_type():
    a = np.full((1, 300), 1, np.int8)
    out = run(
        lambda c, x: c.dot_general(x, x, lhs_contract=[1], rhs_contract=[1], out_dtype="int32"), a
    )
    assert out.tolist() == [[300]]
    half = np.full((2, 2), 1.5, ml_dtypes.bfloat16)
    out = run(
        lambda c, x: c.dot_general(x, x, lhs_contract=[1], rhs_contract=[0], out_dtype="float32"),
        half,
    )
    np.testing.assert_array_equal(out, np.full((2, 2), 4.5))


def test_precision_is_recorded():
    def body(c, x):
        return c.dot_general(x, x, lhs_contract=[1], rhs_contract=[0], precision="HIGHEST")

    assert "precision = [HIGHEST, HIGHEST]" in program(body, tensor(2, 2)).text


def correlate(x, w, stride=1, padding=0, groups=1):
    """Direct NCHW correlation."""
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    (n, _, h, width), (o, per, kh, kw) = x.shape, w.shape
    out = np.zeros((n, o, (h - kh) // stride + 1, (width - kw) // stride + 1), x.dtype)
    for f in range(o):
        start = f // (o // groups) * per
        for i in range(out.shape[2]):
            for j in range(out.shape[3]):
                rows, cols = i * stride, j * stride
                patch = x[:, start : start + per, rows : rows + kh, cols : cols + kw]
                out[:, f, i, j] = (patch * w[f]).sum((1, 2, 3))
    return out


@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 0, 1), (2, 1, 1), (1, 1, 2)])
def test_convolution(stride, padding, groups):
    x, w = integers(2, 4, 5, 6), integers(4, 4 // groups, 3, 2)
    out = run(
        lambda c, u, v: c.convolution(
            u,
            v,
            window_strides=[stride] * 2,
            padding=[(padding, padding)] * 2,
            feature_group_count=groups,
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        ),
        x,
        w,
    )
    np.testing.assert_array_equal(out, correlate(x, w, stride, padding, groups))


def test_convolution_layouts_and_reversal():
    x, w = integers(2, 3, 5, 6), integers(4, 3, 3, 2)
    out = run(
        lambda c, u, v: c.convolution(
            u,
            v,
            window_strides=[1, 1],
            padding=[(0, 0)] * 2,
            window_reversal=[True, True],
            dimension_numbers=("NHWC", "HWIO", "HNWC"),
        ),
        x.transpose(0, 2, 3, 1),
        w.transpose(2, 3, 1, 0),
    )
    expected = correlate(x, w[:, :, ::-1, ::-1]).transpose(2, 0, 3, 1)
    np.testing.assert_array_equal(out, expected)


def test_dilations():
    x, w = np.arange(1.0, 4.0).reshape(1, 1, 3), np.array([1.0, 10.0]).reshape(1, 1, 2)

    def body(c, u, v):
        common = {"window_strides": [1], "padding": [(0, 0)]}
        numbers = ("NCW", "OIW", "NCW")
        return (
            c.convolution(u, v, lhs_dilation=[2], dimension_numbers=numbers, **common),
            c.convolution(u, v, rhs_dilation=[2], dimension_numbers=numbers, **common),
        )

    spread, wide = run(body, x, w)
    assert spread.ravel().tolist() == [1, 20, 2, 30]
    assert wide.ravel().tolist() == [31]


def test_batch_groups():
    x, w = integers(2, 1, 3), integers(2, 1, 3)
    out = run(
        lambda c, u, v: c.convolution(
            u,
            v,
            window_strides=[1],
            padding=[(0, 0)],
            batch_group_count=2,
            dimension_numbers=("NCW", "OIW", "NCW"),
        ),
        x,
        w,
    )
    np.testing.assert_array_equal(out.ravel(), (x * w).sum((1, 2)))


@pytest.mark.parametrize(
    ("left", "lower", "transpose"),
    [(True, True, "NO_TRANSPOSE"), (True, False, "TRANSPOSE"), (False, True, "NO_TRANSPOSE")],
)
def test_triangular_solve(left, lower, transpose):
    a = np.array([[2.0, 1.0], [3.0, 4.0]])
    b = np.array([[1.0, 2.0], [3.0, 5.0]])
    out = run(
        lambda c, x, y: c.triangular_solve(
            x, y, left_side=left, lower=lower, unit_diagonal=False, transpose_a=transpose
        ),
        a,
        b,
    )
    triangle = np.tril(a) if lower else np.triu(a)
    triangle = triangle.T if transpose == "TRANSPOSE" else triangle
    np.testing.assert_allclose(triangle @ out if left else out @ triangle, b)


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        ("FFT", np.fft.fft),
        ("IFFT", np.fft.ifft),
        ("RFFT", lambda x: np.fft.rfft(x.real)),
        ("IRFFT", lambda x: np.fft.irfft(x[:3], 4)),
    ],
)
def test_fft(kind, reference):
    z = np.array([1 + 2j, 3 - 1j, 0.5, -2j])
    x = {"RFFT": z.real, "IRFFT": z[:3]}.get(kind, z)
    out = run(lambda c, v: c.fft(v, kind, [4]), x)
    np.testing.assert_allclose(out, reference(z), atol=1e-12)


def test_cholesky_and_random_bits_have_the_right_types():
    built = program(
        lambda c, x, s: (c.cholesky(x, True), *c.rng_bit_generator(s, (5,), "uint32", "PHILOX")),
        tensor(2, 2),
        tensor(2, dtype="uint64"),
    )
    assert "stablehlo.cholesky %arg0, lower = true" in built.text
    assert "stablehlo.rng_bit_generator %arg1, algorithm = PHILOX" in built.text
    assert [str(r.type) for r in built.signature.results] == ["f32[2,2]", "ui64[2]", "ui32[5]"]


def test_custom_call_with_text():
    def body(c, x):
        return c.custom_call(
            "vendor.op",
            [x],
            [tensor(3), tensor(dtype="int8")],
            backend_config="opaque",
            has_side_effect=True,
            operand_layouts=[(0, 1)],
            result_layouts=[(0,), ()],
        )

    text = program(body, tensor(2, 3)).text
    for part in (
        "@vendor.op(%arg0)",
        'backend_config = "opaque"',
        "has_side_effect = true",
        "operand_layouts = [dense<[0, 1]>",
        "result_layouts = [dense<0>",
        "(tensor<3xf32>, tensor<i8>)",
    ):
        assert part in text


def test_custom_call_with_typed_attributes():
    config = {
        "eps": 0.5,
        "small": np.float32(0.25),
        "count": 3,
        "short": np.int32(7),
        "flag": True,
        "mode": "fast",
        "table": np.arange(3, dtype=np.int64),
        "inner": {"deep": False},
    }
    text = program(
        lambda c, x: c.custom_call("f", [x], [x.type], backend_config=config), tensor(2)
    ).text
    for part in (
        "api_version = 4 : i32",
        "eps = 5.000000e-01 : f64",
        "small = 2.500000e-01 : f32",
        "count = 3 : i64",
        "short = 7 : i32",
        "flag = true",
        'mode = "fast"',
        "table = dense<[0, 1, 2]> : tensor<3xi64>",
        "inner = {deep = false}",
    ):
        assert part in text


def conv(c, x, **kwargs):
    arguments = {
        "window_strides": [1],
        "padding": [(0, 0)],
        "dimension_numbers": ("NCW", "OIW", "NCW"),
    }
    return c.convolution(x, x, **{**arguments, **kwargs})


@pytest.mark.parametrize(
    ("call", "needle"),
    [
        (
            lambda c, x: c.dot_general(x, x, lhs_contract=[3], rhs_contract=[0]),
            "lhs_contract must be distinct",
        ),
        (
            lambda c, x: c.dot_general(x, x, lhs_contract=[2], rhs_contract=[1]),
            "stablehlo.dot_general.*contracting",
        ),
        (
            lambda c, x: c.dot_general(x, x, lhs_contract=[2], rhs_contract=[2], precision="BEST"),
            "precision 'BEST'",
        ),
        (lambda c, x: conv(c, x, dimension_numbers=("NCX", "OIW", "NCW")), "kernel layout 'OIW'"),
        (lambda c, x: conv(c, x, padding=[]), "padding needs 1"),
        (lambda c, x: conv(c, x, batch_group_count=0), "batch_group_count must be >= 1"),
        (lambda c, x: conv(c, x, feature_group_count=7), "stablehlo.convolution"),
        (lambda c, x: c.cholesky(x, True), "stablehlo.cholesky"),
        (lambda c, x: c.fft(x, "DCT", [4]), "fft_type 'DCT'"),
        (lambda c, x: c.rng_bit_generator(x, (1,), "uint8", "MD5"), "rng_algorithm 'MD5'"),
        (
            lambda c, x: c.custom_call("f", [x], [], backend_config={"a": object()}),
            "holds a object",
        ),
        (lambda c, x: c.custom_call("f", [x], [], operand_layouts=[(0,)]), "custom_call"),
    ],
)
def test_malformed_numerical_operations(call, needle):
    def body(c, x):
        with pytest.raises(ProgramError, match=needle):
            call(c, x)
        return x

    program(body, tensor(2, 3, 4))
