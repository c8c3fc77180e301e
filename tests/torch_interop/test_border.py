"""What crosses the border between torch and the plugin: every memory layout, type and alias."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.torch_interop.helpers import assert_compiled, assert_same, compiled, leaves

pytestmark = pytest.mark.usefixtures("fresh")


def unaligned() -> torch.Tensor:
    x = torch.randn(13)[1:]
    assert x.data_ptr() % 64
    return x


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(4, 3).t(),
    "permuted": lambda: torch.randn(2, 3, 4, 5).permute(2, 0, 3, 1),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last, one channel": lambda: torch.randn(2, 4, 5, 1).permute(0, 3, 1, 2),
    "gaps in rows": lambda: torch.randn(3, 8)[:, ::2],
    "gaps between rows": lambda: torch.randn(3, 8)[:, :5],
    "transposed with gaps": lambda: torch.randn(8, 6)[1::3, ::2].t(),
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "expanded number": lambda: torch.tensor(2.5).expand(2, 3),
    "expanded and transposed": lambda: torch.randn(2, 1, 3).expand(2, 4, 3).transpose(0, 2),
    "overlapping": lambda: torch.randn(6).as_strided((4, 3), (1, 1)),
    "unaligned": unaligned,
    "unaligned and transposed": lambda: torch.randn(21)[1:].view(4, 5).t(),
    "no elements": lambda: torch.randn(3, 0, 2),
    "no elements, transposed": lambda: torch.randn(0, 3).t(),
    "number": lambda: torch.tensor(3.5),
    "one element": lambda: torch.randn(1, 1, 1),
    "negated": lambda: torch._neg_view(torch.randn(3, 4)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_of_every_layout(layout: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    x = LAYOUTS[layout]()
    before = x.clone()
    found, expected = compiled(function)(x), function(x)
    assert_same(found, expected)
    # Of a tensor without elements torch's own kernels and promises disagree.
    assert found.stride() == expected.stride() or not x.numel()
    assert torch.equal(x, before)
    assert_compiled("inference")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parameters_of_every_layout(layout: str) -> None:
    class Holder(torch.nn.Module):
        def __init__(self, weight: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer("weight", weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x

    weight, x = LAYOUTS[layout](), torch.tensor(2.0)
    model = Holder(weight)
    device = compiled(model)
    assert_same(device(x), model(x))
    if layout not in ("overlapping", "expanded", "expanded number", "expanded and transposed"):
        weight.mul_(3)
    assert_same(device(x), model(x))
    assert_compiled("inference")


NUMBERS = [[0, 1, 2], [3, 4, 5]]
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_element_types_in_and_out(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> Any:
        return x.t().clone(), x == x[0], torch.cat([x, x])

    x = torch.tensor(NUMBERS).to(dtype)
    assert_same(compiled(function)(x), function(x), rtol=0, atol=0)
    assert_compiled("inference")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_lazily_conjugated_input(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2, y + 1, x + y

    z = torch.randn(3, 4, dtype=dtype)
    x, y = z.conj(), z.t().conj().t()
    assert x.is_conj()
    assert_same(compiled(function)(x, y), function(x, y))
    assert_compiled("inference")


OUTPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "transposed": lambda x: (x + 1).t(),
    "permuted": lambda x: (x + 1).view(3, 2, 2).permute(1, 2, 0),
    "channels last": lambda x: (x + 1).view(1, 3, 2, 2).to(memory_format=torch.channels_last),
    "channels last, one channel": lambda x: (
        (x + 1).view(3, 1, 2, 2).to(memory_format=torch.channels_last)
    ),
    "expanded": lambda x: x.sum(1, keepdim=True).expand(3, 5),
    "expanded in front": lambda x: (x + 1).expand(2, 3, 4),
    "expanded number": lambda x: x.sum().expand(2, 3),
    "expanded and transposed": lambda x: (x + 1)[:, None].expand(3, 5, 4).transpose(0, 2),
    "no elements": lambda x: (x + 1)[:, :0],
    "number": lambda x: x.sum(),
    "whole number": lambda x: x.argmax(),
    "truth": lambda x: x > 0,
    "view of a result": lambda x: (x + 1, (x + 1).view(-1)),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_outputs_keep_their_strides(output: str, training: bool) -> None:
    function = OUTPUTS[output]
    x = torch.randn(3, 4, requires_grad=training)
    found, expected = compiled(function)(x), function(x)
    assert_same(found, expected)
    for ours, theirs in zip(leaves(found), leaves(expected), strict=True):
        assert ours.stride() == theirs.stride()
        assert ours.requires_grad == theirs.requires_grad


def test_a_part_of_a_result_lies_in_the_memory_of_the_whole() -> None:
    function = lambda x: (x + 1)[:, 1::2]  # noqa: E731
    found, expected = compiled(function)(torch.zeros(3, 4)), function(torch.zeros(3, 4))
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride() == (4, 2)
    assert found.storage_offset() == expected.storage_offset() == 1
    assert_compiled("inference")


def views_of_one_base(x: torch.Tensor) -> Any:
    base = x * 2
    return base, base.t(), base[1:], base.view(-1)[::2], base[:1].expand(5, 4)


def views_of_a_base_with_gaps(x: torch.Tensor) -> Any:
    base = torch.empty_strided((3, 4), (10, 2))
    base.copy_(x)
    return base, base[1:], base.t(), base[:, 1:3]


def views_of_a_permuted_base(x: torch.Tensor) -> Any:
    base = x.t() * 2
    return base, base[1:], base[:, 1], base.t().view(-1)


@pytest.mark.parametrize(
    "function", [views_of_one_base, views_of_a_base_with_gaps, views_of_a_permuted_base]
)
def test_outputs_that_are_views_of_one_base_share_memory(
    function: Callable[[torch.Tensor], Any],
) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    found, expected = compiled(function)(x), function(x)
    assert_same(found, expected)
    with torch.no_grad():
        found[0].fill_(7)
    for view in found:
        assert bool((view == 7).all())
    assert_compiled("forward")


def test_what_is_no_new_tensor() -> None:
    def function(x: torch.Tensor, n: int) -> Any:
        y = x + 1
        return x, y, y, None, n, "text", {"again": y}

    x = torch.randn(3)
    same, y, again, nothing, number, text, nested = compiled(function)(x, 3)
    assert same is x
    assert y is again is nested["again"]
    assert (nothing, number, text) == (None, 3, "text")
    assert_same(y, x + 1)
    assert_compiled("inference")


def test_views_of_an_input_are_views_of_that_input() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.view(-1), x[1:], x.t(), x.detach(), x.sum()

    x = torch.randn(3, 4)
    *views, total = compiled(function)(x)
    assert_same(views, function(x)[:-1])
    x.zero_()
    assert all(not view.any() for view in views)
    assert bool(total)
    assert_compiled("inference")


COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": torch.clone,
    "plus zero": lambda x: x + 0,
    "same type": lambda x: x.to(torch.float64).to(torch.float32),
    "reshaped copy": lambda x: x.clone().view(-1),
    "contiguous": lambda x: x.t().contiguous(),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("static", [False, True], ids=["input", "buffer"])
def test_writing_into_an_output_changes_no_input(copy: str, static: bool) -> None:
    function = COPIES[copy]

    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.arange(64.0).view(8, 8))

        def forward(self, x: torch.Tensor) -> Any:
            return function(self.weight if static else x), x.sum()

    model, x = Holder(), torch.arange(64.0).view(8, 8)
    device = compiled(model)
    for _ in range(2):
        found = device(x)[0]
        assert_same(found, function(torch.arange(64.0).view(8, 8)))
        found.fill_(-1)
        assert torch.equal(x, torch.arange(64.0).view(8, 8))
        assert torch.equal(model.weight, torch.arange(64.0).view(8, 8))
    assert_compiled("inference")


def test_writing_into_an_output_changes_no_constant() -> None:
    table = torch.tensor([5.0, 6.0])

    def function(x: torch.Tensor) -> Any:
        return torch.tensor([1.0, 2.0]), torch.ones(2), x + 1, table * x, table.clone()

    device = compiled(function)
    x = torch.zeros(2)
    for _ in range(2):
        found = device(x)
        assert_same(found, function(x))
        for output in found:
            output.fill_(-1)
    table.fill_(9)
    assert_same(device(x), function(x))
    assert_compiled("inference")


@pytest.mark.parametrize("requires_grad", [False, True])
def test_outputs_can_be_changed_in_place(requires_grad: bool) -> None:
    """Also those whose memory is permuted, which must be no views for autograd."""
    x = torch.randn(4, 3, requires_grad=requires_grad)
    weight = torch.nn.Parameter(torch.randn(4, 3))

    def function(x: torch.Tensor) -> Any:
        return x.t() * weight.t(), x * weight, x.t() + 1

    def use(function: Callable[[torch.Tensor], Any]) -> Any:
        results = function(x)
        for result in results:
            result.mul_(3)
        total = sum(result.sum() for result in results)
        weight.grad = None
        total.backward()
        return results, weight.grad

    assert_same(use(compiled(function)), use(function))
    assert_compiled("forward", "backward")


def test_one_tensor_as_two_arguments() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    device, x = compiled(function), torch.randn(4, 4)
    assert_same(device(x, x), x @ x)
    assert_same(device(x, x.t()), x @ x.t())
    y = torch.randn(4, 4)
    assert_same(device(x, y), x @ y)


def test_an_input_may_change_right_after_the_call() -> None:
    device = compiled(lambda x: (x @ x).sum(-1))
    x = torch.empty(256, 256)
    results = []
    for value in range(5):
        x.fill_(value)
        results.append(device(x))
        x.fill_(-1000)
    assert [float(result[0]) for result in results] == [256.0 * 256 * v * v for v in range(5)]


def test_results_outlive_the_model_and_all_that_was_compiled() -> None:
    model = torch.nn.Linear(64, 64)
    x = torch.randn(8, 64)
    expected = model(x).detach()
    with torch.no_grad():
        found = compiled(model)(x)
    view = found[2:]
    del model, found
    torch.compiler.reset()
    gc.collect()
    scratch = [torch.full((8, 64), float("nan")) for _ in range(50)]
    assert_same(view, expected[2:])
    assert len(scratch) == 50


def test_closures_bring_their_tensors() -> None:
    table = torch.arange(6.0).view(2, 3)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x @ table

    device, x = compiled(function), torch.randn(4, 2)
    assert_same(device(x), function(x))
    table.mul_(2)
    assert_same(device(x), function(x))
    assert_compiled("inference")
