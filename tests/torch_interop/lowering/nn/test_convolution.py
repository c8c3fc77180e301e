import pytest
import torch

from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.lowering.harness import check, run_on_cpu

torch.manual_seed(0)

# (spatial size, in channels, out channels, kernel, stride, padding, dilation, groups)
PLAIN = [
    ((9,), 4, 6, (3,), [2], [1], [1], 1),
    ((9,), 4, 6, (3,), [1], [0], [2], 2),
    ((8, 7), 3, 4, (3, 2), [1], [0], [1], 1),
    ((8, 7), 4, 6, (3, 3), [2, 3], [1, 2], [1, 1], 2),
    ((8, 9), 4, 4, (3, 3), [1, 2], [2], [2, 1], 4),
    ((6, 6), 3, 2, (1, 1), [2], [0], [1], 1),
    ((7, 7), 2, 3, (3, 3), [4], [0], [1], 1),
    ((5, 4, 6), 2, 4, (2, 3, 2), [1, 2, 2], [1, 1, 0], [1, 1, 2], 2),
]
# the same and an output padding
TRANSPOSED = [
    ((5,), 4, 6, (3,), [2], [1], [1], 1, [1]),
    ((5, 4), 4, 6, (3, 2), [2, 3], [1, 0], [1], 2, [1, 2]),
    ((5, 4), 3, 2, (2, 2), [1], [0], [3], 1, [2, 0]),
    ((3, 3, 4), 2, 4, (2, 3, 2), [2], [1], [1], 2, [0]),
]


def _plain(size, channels, out, kernel, groups, dtype):
    x = torch.randn(2, channels, *size).to(dtype)
    weight = torch.randn(out, channels // groups, *kernel).to(dtype)
    return x, weight, torch.randn(out).to(dtype)


def _transposed(size, channels, out, kernel, groups, dtype):
    x = torch.randn(2, channels, *size).to(dtype)
    weight = torch.randn(channels, out // groups, *kernel).to(dtype)
    return x, weight, torch.randn(out).to(dtype)


def _check_both(x, weight, bias, parameters):
    name = "aten.convolution"
    check(f"{name}.default", x, weight, bias, *parameters)
    check(f"{name}.default", x, weight, None, *parameters)
    grad = torch.randn_like(torch.ops.aten.convolution(x, weight, bias, *parameters))
    sizes = list(bias.shape)
    for mask in ([True, True, True], [False, True, False]):
        check(f"{name}_backward.default", grad, x, weight, sizes, *parameters, mask)


@pytest.mark.parametrize("case", PLAIN)
def test_convolution_and_its_gradients(case):
    size, channels, out, kernel, stride, padding, dilation, groups = case
    tensors = _plain(size, channels, out, kernel, groups, torch.float32)
    parameters = (stride, padding, dilation, False, [0] * len(size), groups)
    _check_both(*tensors, parameters)


@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolution_and_its_gradients(case):
    size, channels, out, kernel, stride, padding, dilation, groups, output_padding = case
    tensors = _transposed(size, channels, out, kernel, groups, torch.float32)
    parameters = (stride, padding, dilation, True, output_padding, groups)
    _check_both(*tensors, parameters)


def test_four_spatial_dimensions_are_refused():
    from pjrt_bridge.stablehlo.builder.builder import Builder
    from pjrt_bridge.torch_interop.lowering.context import Context
    from pjrt_bridge.torch_interop.lowering.registry import find_lowering
    from tests.torch_interop.lowering.harness import tensor_type

    tensors = [torch.randn(1, 1, 2, 2, 2, 2), torch.randn(1, 1, 1, 1, 1, 1)]
    builder = Builder([tensor_type(t) for t in tensors])
    context = Context(builder, [tensor_type(tensors[0])])
    with pytest.raises(NotLowerable, match="4 spatial dimensions"):
        find_lowering("aten.convolution.default")(
            context, *builder.parameters, None, [1], [0], [1], False, [0], 1
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_convolution_of_half_precision(dtype):
    tensors = _plain((6, 6), 4, 6, (3, 3), 2, dtype)
    parameters = ([2], [1], [1], False, [0, 0], 2)
    # The interpreter cannot contract into another type.
    check("aten.convolution.default", *tensors, *parameters, engines=[run_on_cpu])
