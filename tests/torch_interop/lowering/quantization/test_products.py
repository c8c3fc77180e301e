import pytest
import torch

from tests.torch_interop.lowering.harness import check

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("left", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(32, 16, 24), (1, 1, 1), (17, 2048, 8), (3, 0, 2)])
def test_integers_are_summed_without_rounding(m, k, n, left):
    limits = torch.iinfo(left)
    x = torch.randint(limits.min, limits.max + 1, (m, k), dtype=left)
    y = torch.randint(-128, 128, (k, n), dtype=torch.int8)
    check("aten._int_mm.default", x, y, exact=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_int8_weights_have_a_scale_in_each_row(dtype):
    weight = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    x, scales = torch.randn(5, 64).to(dtype), torch.rand(32).to(dtype) * 0.01
    check("aten._weight_int8pack_mm.default", x, weight, scales)


@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("left", FLOAT8, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_float8_is_summed_in_float32(left, out, biased):
    x = torch.randn(32, 16).to(left)
    y = torch.randn(24, 16).to(torch.float8_e4m3fn).t()
    options = {"out_dtype": out, "bias": torch.randn(24).to(out) if biased else None}
    args = (x, y, torch.tensor(1.5), torch.tensor(0.25))
    expected = torch._scaled_mm(*args[:2], scale_a=args[2], scale_b=args[3], **options)
    function = torch.compile(torch._scaled_mm, backend="pjrt", options={"fallback": "error"})
    found = function(*args[:2], scale_a=args[2], scale_b=args[3], **options)
    assert found.dtype == out
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("result_scale", [None, 4.0])
@pytest.mark.parametrize("out", FLOAT8, ids=str)
def test_float8_results_that_are_too_large(out, result_scale):
    x = (torch.randn(32, 16) * 8).to(torch.float8_e4m3fn)
    y = (torch.randn(24, 16) * 8).to(torch.float8_e4m3fn).t()
    options = {"scale_a": torch.tensor(1.5), "scale_b": torch.tensor(0.5), "out_dtype": out}
    if result_scale is not None:
        options["scale_result"] = torch.tensor(result_scale)
    # Dynamo counts what other tests compiled of this function, and runs it in eager in the end.
    torch.compiler.reset()
    function = torch.compile(torch._scaled_mm, backend="pjrt", options={"fallback": "error"})
    found, expected = function(x, y, **options), torch._scaled_mm(x, y, **options).float()
    # On processors with AMX torch gives NaN for what its conversion makes the largest number.
    exact = (x.float() @ y.float()) * (1.5 * 0.5 * (result_scale or 1))
    expected = torch.where(expected.isnan(), exact.to(out).float(), expected)
    torch.testing.assert_close(found.float(), expected, rtol=0.25, atol=1e-2)
