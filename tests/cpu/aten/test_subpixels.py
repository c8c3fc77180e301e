"""Transposed convolutions that are plain ones: the stride divides the kernel, or is 1."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tests.cpu.aten.comparing import compare
from tests.cpu.aten.test_convolution import HALF, TRANSPOSED
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("always", "fresh", "convolved_by_onednn")

PLAIN: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "kernel of 4": ((3, 6, 7, 5), (6, 8, 4, 4), {"stride": 2, "padding": 1}),
    "kernel of the stride": ((3, 6, 7, 5), (6, 8, 2, 3), {"stride": (2, 3)}),
    "one side strided": ((1, 6, 7, 5), (6, 40, 3, 4), {"stride": (1, 2)}),
    "more behind": ((2, 6, 7, 5), (6, 8, 6, 6), {"stride": 3, "padding": 2, "output_padding": 2}),
    "one place": ((2, 3, 1, 1), (3, 5, 4, 4), {"stride": 4, "padding": 1}),
    "one channel": ((2, 1, 7, 5), (1, 1, 2, 2), {"stride": 2}),
    "1d": ((3, 6, 17), (6, 4, 8), {"stride": 4, "padding": 2}),
    "no stride": ((3, 6, 9, 8), (6, 8, 3, 3), {}),
    "no stride, groups": ((3, 6, 7, 5), (6, 4, 3, 2), {"groups": 3, "padding": 1}),
    "no stride, dilated": ((3, 6, 7, 5), (6, 8, 3, 3), {"dilation": 2, "padding": (3, 4)}),
    "no stride, 1d": ((3, 6, 17), (6, 4, 5), {"padding": 2}),
    "3d": ((2, 4, 3, 4, 5), (4, 6, 2, 4, 2), {"stride": 2, "padding": (0, 1, 0)}),
}
OTHERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "kernel of 3": ((3, 6, 7, 5), (6, 8, 3, 4), {"stride": 2}),
    "no stride, and few places": ((3, 6, 2, 2), (6, 8, 4, 4), {}),
    "no stride, and more cut off than there is": ((3, 6, 7, 5), (6, 8, 2, 2), {"padding": 2}),
    "groups": ((3, 6, 7, 5), (6, 4, 2, 2), {"stride": 2, "groups": 2}),
    "dilated": ((3, 6, 7, 5), (6, 4, 2, 2), {"stride": 2, "dilation": 2}),
    "beyond what is computed": ((3, 6, 7, 5), (6, 4, 2, 2), {"stride": 2, "output_padding": 1}),
}


def sides(x: tuple[int, ...], w: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(shape).to(dtype) for shape in (x, w)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=HALF)])
@pytest.mark.parametrize("name", PLAIN)
def test_they_are_plain(name: str, dtype: torch.dtype, bias: bool, written: Counter[str]) -> None:
    x_shape, w_shape, keywords = PLAIN[name]
    x, weight = sides(x_shape, w_shape, dtype)
    channels = w_shape[1] * keywords.get("groups", 1)
    extra = [torch.randn(channels).to(dtype)] if bias else []
    function = TRANSPOSED[x.ndim - 2]
    compare(lambda x, w, *b: function(x, w, *b, **keywords), x, weight, *extra)
    assert not written["convolution.default"]
    assert written


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_not(name: str, written: Counter[str]) -> None:
    x_shape, w_shape, keywords = OTHERS[name]
    x, weight = sides(x_shape, w_shape, torch.float32)
    compare(lambda x, w: functional.conv_transpose2d(x, w, **keywords), x, weight)
    assert written["convolution.default"]
    assert not written["mkldnn_convolution.default"]


def test_training_with_channels_last(written: Counter[str]) -> None:
    x, w = sides((2, 6, 7, 5), (6, 8, 4, 4), torch.float32)
    other = torch.randn(8, 5, 2, 2)
    transposed = functional.conv_transpose2d

    def decoder(x: torch.Tensor, w: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return transposed(transposed(x, w, stride=2, padding=1).relu(), other, stride=2)

    compare(decoder, x.to(memory_format=torch.channels_last), w, other, train=True)
    assert written["mkldnn_convolution.default"]
    assert not written["convolution.default"]


def test_what_lies_beyond_the_data_takes_no_part() -> None:
    """An infinite weight is multiplied by no zero."""
    x, w = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 4, 4)
    w[0, 0, 0, 0] = torch.inf
    compare(lambda x, w: functional.conv_transpose2d(x, w, stride=2, padding=1), x, w)


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_window(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 2))
    stride = [data.draw(st.integers(1, 3)) for _ in range(count)]
    kernel = [s * data.draw(st.integers(1, 3)) for s in stride]
    size = [data.draw(st.integers(1, 6)) for _ in range(count)]
    padding = [data.draw(st.integers(0, k // 2)) for k in kernel]
    output = [data.draw(st.integers(0, s - 1)) for s in stride]
    results = [
        (n - 1) * s - 2 * p + k + more
        for n, s, p, k, more in zip(size, stride, padding, kernel, output, strict=True)
    ]
    assume(min(results) >= 1)
    x, w = sides((2, 3, *size), (3, 4, *kernel), torch.float32)
    function = TRANSPOSED[count]
    compare(lambda x, w: function(x, w, None, stride, padding, output), x, w)
