"""Convolutions with calls: what the rule takes is eager's, whatever lies how."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pjrt_bridge_cpu.aten.calls import KernelCall
from pjrt_bridge_cpu.aten.convolution import channels_last
from tests.cpu.aten.comparing import compare
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("always", "fresh", "convolved_by_onednn")

CONVOLUTIONS = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d}
CONVOLUTIONS[3] = torch.nn.functional.conv3d
TRANSPOSED = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one channel": ((2, 1, 9, 9), (4, 1, 3, 3), {}),
    "one feature": ((2, 4, 9, 9), (1, 4, 3, 3), {"padding": 1}),
    "one place": ((2, 8, 1, 1), (6, 8, 1, 1), {}),
    "one row": ((1, 5, 1, 20), (40, 5, 1, 3), {"stride": (1, 2)}),
    "batch of one, channels in parts": ((1, 40, 12, 12), (70, 40, 3, 3), {"padding": 1}),
    "batch of one in groups": ((1, 8, 9, 9), (36, 2, 3, 3), {"groups": 4}),
    "groups": ((3, 12, 9, 9), (24, 2, 3, 3), {"groups": 6, "padding": 1}),
    "depthwise": ((3, 12, 9, 9), (24, 1, 3, 3), {"groups": 12, "padding": 1}),
    "strided, dilated": ((3, 4, 13, 11), (6, 4, 3, 2), {"stride": (2, 3), "dilation": (3, 2)}),
    "padding beyond": ((3, 4, 3, 3), (6, 4, 2, 2), {"padding": (4, 3)}),
    "1d": ((3, 4, 19), (6, 4, 3), {"padding": 2, "dilation": 2}),
    "1d, batch of one": ((1, 4, 19), (34, 4, 3), {"stride": 2}),
    "3d": ((2, 4, 5, 6, 7), (6, 4, 2, 3, 1), {"padding": (1, 0, 1)}),
    "3d, one deep": ((2, 4, 1, 6, 7), (6, 2, 1, 3, 3), {"groups": 2}),
}
BACKWARDS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "2d": ((3, 6, 7, 5), (6, 4, 3, 3), {"stride": 2, "padding": 1, "output_padding": (1, 0)}),
    "2d, batch of one": ((1, 6, 7, 5), (6, 40, 3, 3), {"stride": 3, "output_padding": 2}),
    "groups": ((3, 6, 7, 5), (6, 4, 3, 3), {"groups": 3, "dilation": 2}),
    "groups, batch of one": ((1, 6, 7, 5), (6, 8, 3, 3), {"groups": 2, "stride": (1, 2)}),
    "one channel": ((2, 1, 7, 5), (1, 1, 3, 3), {}),
    "1d": ((3, 6, 17), (6, 4, 3), {"stride": 2, "output_padding": 1}),
    "3d": ((2, 4, 3, 4, 5), (4, 6, 2, 3, 1), {"stride": 2, "padding": (1, 0, 0)}),
}
NAMES = [*((name, False) for name in CASES), *((name, True) for name in BACKWARDS)]
FEW = [("batch of one, channels in parts", False), ("groups", False), ("1d", False)]
FEW += [("2d, batch of one", True), ("groups", True)]


HALF = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="PyTorch convolves bfloat16 by oneDNN only on processors with AVX-512 or AVX-NE-CONVERT",
)
"""Of calls that a trial in another process refuses on other processors; here nothing is tried."""


def slow(value: Any, *marks: pytest.MarkDecorator) -> Any:
    return pytest.param(value, marks=[pytest.mark.slow, *marks])


def run(name: str, transposed: bool, dtype: torch.dtype, bias: bool) -> None:
    x_shape, w_shape, keywords = (BACKWARDS if transposed else CASES)[name]
    function = (TRANSPOSED if transposed else CONVOLUTIONS)[len(x_shape) - 2]
    features = w_shape[1] * keywords.get("groups", 1) if transposed else w_shape[0]
    x, weight, b = (torch.randn(shape).to(dtype) for shape in (x_shape, w_shape, (features,)))
    extra = (b,) if bias else ()
    compare(lambda x, w, *b: function(x, w, *b, **keywords), x, weight, *extra, train=True)


@pytest.mark.parametrize(("name", "transposed"), FEW)
def test_convolutions_forward_and_backward(
    name: str, transposed: bool, written: Counter[str]
) -> None:
    run(name, transposed, torch.float32, True)
    forward = "convolution" if transposed else "mkldnn_convolution"
    # Each graph is looked at more than once.
    times = written[f"{forward}.default"]
    assert written == {f"{forward}.default": times, "convolution_backward.default": 2 * times}
    assert times


@pytest.mark.slow
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=HALF)])
@pytest.mark.parametrize(("name", "transposed"), NAMES)
def test_all_convolutions_forward_and_backward(
    name: str, transposed: bool, dtype: torch.dtype, bias: bool, written: Counter[str]
) -> None:
    run(name, transposed, dtype, bias)
    # The plugin's own form of a depthwise convolution is faster.
    assert bool(written["convolution_backward.default"]) == (name != "depthwise")


@pytest.mark.parametrize("dtype", [torch.float32, slow(torch.bfloat16, HALF)])
def test_sides_that_lie_otherwise(dtype: torch.dtype, written: Counter[str]) -> None:
    conv = torch.nn.functional.conv2d
    x, weight = torch.randn(2, 6, 9, 7).to(dtype), torch.randn(8, 6, 3, 3).to(dtype)
    compare(lambda x, w: conv(x.transpose(2, 3), w.transpose(0, 1)), x, weight.mT[:6])
    compare(lambda x, w: conv(x[..., ::2], w[:, :, :, 1:]), x, weight)
    compare(lambda x, w: conv(x.expand(3, 6, 9, 7), w), x[:1].clone(), weight, train=True)
    last = [side.detach().to(memory_format=torch.channels_last) for side in (x, weight)]
    compare(conv, *last, train=True)
    assert written["mkldnn_convolution.default"] >= 4


@HALF
@pytest.mark.parametrize("bias", [True, False])
def test_kernels_of_one_place_in_bfloat16_are_products(bias: bool, written: Counter[str]) -> None:
    conv = torch.nn.functional.conv2d
    x = torch.randn(3, 40, 9, 7).to(torch.bfloat16, memory_format=torch.channels_last)
    weight, b = torch.randn(50, 40, 1, 1).bfloat16(), torch.randn(50).bfloat16()
    compare(lambda *sides: conv(*sides), x, weight, *((b,) if bias else ()), train=True)
    assert written["linear.out"]
    written.clear()
    compare(lambda x, w: conv(x, w, stride=2), x, weight)
    compare(lambda x, w: conv(x, w, padding=1), x, weight)
    compare(lambda x, w: conv(x, w[:, :20], groups=2), x, weight)
    compare(conv, x.contiguous(), weight)
    compare(conv, x.float(), weight.float())
    assert written["mkldnn_convolution.default"] >= 5
    assert not written["linear.out"]


def test_the_smaller_side_is_not_cut(emitted: list[KernelCall]) -> None:
    weight = torch.randn(32, 16, 3, 3)
    for side, dim in ((3, 1), (40, 0)):
        emitted.clear()
        compare(torch.nn.functional.conv2d, torch.randn(4, 16, side, side), weight)
        assert {call.cut and tuple(call.cut.results) for call in emitted} == {(dim,)}


def test_depthwise_ones_are_no_calls(written: Counter[str]) -> None:
    run("depthwise", False, torch.float32, True)
    assert not written


@pytest.mark.parametrize(("alone", "order"), [(True, (0, 1, 2, 3)), (False, (0, 2, 3, 1))])
def test_one_alone_keeps_the_order_of_its_data(
    alone: bool, order: tuple[int, ...], emitted: list[KernelCall]
) -> None:
    convolve = CONVOLUTIONS[2]

    def network(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first = convolve(x, v)
        return first.relu() if alone else convolve(first, w)

    compare(network, torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3), torch.randn(5, 6, 3, 3))
    assert {found for call in emitted for found in call.result_orders or ()} == {order}


def test_one_number_for_all_dimensions(written: Counter[str]) -> None:
    def whole(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.convolution(x, w, None, [2], [1], [1], False, [0], 1)

    compare(whole, torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3), train=True)
    assert written["mkldnn_convolution.default"]


@pytest.mark.parametrize("needed", ["x", "wb", *(slow(way) for way in ("w", "b", "xb"))])
def test_only_the_gradients_that_are_asked_for(needed: str, written: Counter[str]) -> None:
    sides = {"x": torch.randn(2, 4, 9, 9), "w": torch.randn(6, 4, 3, 3), "b": torch.randn(6)}
    for name in needed:
        sides[name].requires_grad_()
    chosen = [sides[name] for name in needed]
    conv = torch.nn.functional.conv2d
    compiled = torch.compile(conv, backend="pjrt", options={"fallback": "error"})
    seed = torch.randn(2, 6, 7, 7)
    wanted = torch.autograd.grad(conv(*sides.values()), chosen, seed)
    found = torch.autograd.grad(compiled(*sides.values()), chosen, seed)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)
    calls = written["convolution_backward.default"]
    assert calls == written["mkldnn_convolution.default"] * len(set(needed) & {"x", "w"})


def test_empty_ones_are_no_calls(written: Counter[str]) -> None:
    compare(torch.nn.functional.conv2d, torch.randn(0, 4, 9, 9), torch.randn(6, 4, 3, 3))
    assert not written


def test_without_a_batch(written: Counter[str]) -> None:
    compare(torch.nn.functional.conv2d, torch.randn(4, 9, 9), torch.randn(6, 4, 3, 3), train=True)
    assert written["mkldnn_convolution.default"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_are_no_calls(dtype: torch.dtype, written: Counter[str]) -> None:
    x, weight = torch.randn(2, 4, 9, 9).to(dtype), torch.randn(6, 4, 3, 3).to(dtype)
    with torch.no_grad():
        found = torch.compile(torch.nn.functional.conv2d, backend="pjrt")(x, weight)
    torch.testing.assert_close(found, torch.nn.functional.conv2d(x, weight), rtol=0, atol=5e-2)
    assert not written


def test_not_a_number_and_infinities() -> None:
    x = torch.randn(2, 4, 9, 9)
    x[0, 1, 2, 3], x[1, 2, 5, 5] = float("nan"), float("inf")
    compare(torch.nn.functional.conv2d, x, torch.randn(6, 4, 3, 3))


def test_channels_are_last_where_pytorch_knows_that() -> None:
    assert [channels_last(rank) for rank in (3, 4, 5)] == [(0, 1, 2), (0, 2, 3, 1), (0, 2, 3, 4, 1)]


@pytest.mark.slow
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_drawn_convolutions(data: st.DataObject) -> None:
    few = st.integers(1, 3)
    count, groups = data.draw(few), data.draw(few)
    transposed = data.draw(st.booleans())
    kernel = [data.draw(few) for _ in range(count)]
    stride, dilation = ([data.draw(few) for _ in range(count)] for _ in range(2))
    padding = [data.draw(st.integers(0, size - 1)) for size in kernel]
    spatial = [
        data.draw(st.integers(step * size, 9)) for size, step in zip(kernel, dilation, strict=True)
    ]
    inner, outer = data.draw(few), data.draw(few)
    x_shape = (data.draw(few), inner * groups, *spatial)
    w_shape = (inner * groups, outer, *kernel) if transposed else (outer * groups, inner, *kernel)
    output = [
        data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
    ]
    half = [torch.bfloat16] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else []
    dtype = data.draw(st.sampled_from([torch.float32, *half]))
    x, weight = torch.randn(x_shape).to(dtype), torch.randn(w_shape).to(dtype)
    function = (TRANSPOSED if transposed else CONVOLUTIONS)[count]
    rest = (output, groups, dilation) if transposed else (dilation, groups)
    torch.compiler.reset()
    compare(lambda x, w: function(x, w, None, stride, padding, *rest), x, weight, train=True)
