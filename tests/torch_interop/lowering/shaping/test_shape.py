import math

import pytest
import torch

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, TensorType, memory_order
from pjrt_bridge.torch_interop.lowering.context import Context, MemoryOrder
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, find_lowering
from tests.torch_interop.helpers import assert_same, compiled
from tests.torch_interop.lowering.harness import check, lower

X = torch.arange(24.0).reshape(2, 3, 4)
M = torch.arange(12).reshape(3, 4)
S = torch.tensor(3.5)
E = torch.empty(0, 3)
C = torch.tensor([[1 + 2j, 3 - 4j]])

CASES = [
    ("aten.alias.default", (X,), {}),
    ("aten.clone.default", (X,), {"memory_format": torch.contiguous_format}),
    ("aten.lift_fresh_copy.default", (M,), {}),
    ("aten.detach.default", (M,), {}),
    ("aten.detach_copy.default", (M,), {}),
    ("aten.view.default", (X, [6, -1]), {}),
    ("aten.view.default", (S, [1, 1]), {}),
    ("aten.view.default", (E, [3, 0]), {}),
    ("aten._unsafe_view.default", (X, [24]), {}),
    ("aten.unsqueeze.default", (X, -1), {}),
    ("aten.unsqueeze.default", (S, 0), {}),
    ("aten.squeeze.dim", (X[:1], 0), {}),
    ("aten.squeeze.dim", (X, 0), {}),
    ("aten.squeeze.dims", (X[:1, :, :1], [0, -1]), {}),
    ("aten.squeeze.default", (X[:1, :, :1],), {}),
    ("aten.view.dtype", (X, torch.int32), {}),
    ("aten.view.dtype", (X, torch.int16), {}),
    ("aten.view.dtype", (M, torch.float32), {}),
    ("aten.view.dtype", (X, torch.float64), {}),
    ("aten.permute.default", (X, [2, 0, -2]), {}),
    ("aten.permute.default", (X.bfloat16(), [0, 1, 2]), {}),
    ("aten.transpose.int", (X, -1, 0), {}),
    ("aten.transpose.int", (S, -1, 0), {}),
    ("aten.t.default", (M,), {}),
    ("aten.t.default", (M[0],), {}),
    ("aten.expand.default", (M, [2, -1, 4]), {}),
    ("aten.expand.default", (X[:, :1], [5, 2, 3, 4]), {}),
    ("aten.expand.default", (X[:, :0], [2, 0, -1]), {}),
    ("aten.expand.default", (S, [2, 2]), {}),
    ("aten.repeat.default", (M, [2, 1, 3]), {}),
    ("aten.repeat.default", (M, [0, 2]), {}),
    ("aten.repeat.default", (S, [3]), {}),
    ("aten.cat.default", ([X, X[:, :1]], 1), {}),
    ("aten.cat.default", ([M, M.to(torch.float16)], -1), {}),
    ("aten.cat.default", ([torch.empty(0), M], 0), {}),
    ("aten.cat.default", ([torch.empty(0), torch.empty(0)],), {}),
    ("aten.cat.default", ([M[:0], M],), {}),
    ("aten.stack.default", ([M, M], -1), {}),
    ("aten.flip.default", (X, [0, -1]), {}),
    ("aten.flip.default", (X, []), {}),
    ("aten.flip.default", (S, []), {}),
    ("aten.roll.default", (X, [1, -5], [0, 2]), {}),
    ("aten.roll.default", (X, [7]), {}),
    ("aten.roll.default", (E, [1], [0]), {}),
    ("aten.constant_pad_nd.default", (X, [1, 2, 0, 1], 7.0), {}),
    ("aten.constant_pad_nd.default", (X, [-1, 2, 1, -2]), {}),
    ("aten.constant_pad_nd.default", (M, [1, 1], -3), {}),
    ("aten.constant_pad_nd.default", (M > 3, [1, 1], True), {}),
    ("aten.constant_pad_nd.default", (X, [0, 0, 1, 0], -math.inf), {}),
    ("aten.copy.default", (X, M), {}),
    ("aten.copy.default", (M, S), {}),
    ("aten.view_as_real.default", (C,), {}),
    ("aten.view_as_complex.default", (torch.randn(3, 2),), {}),
    ("aten.complex.default", (torch.randn(2, 1), torch.randn(3)), {}),
    ("aten._conj_physical.default", (C,), {}),
    ("aten.conj_physical.default", (X,), {}),
    # slicing
    ("aten.slice.Tensor", (X, 1, 1, 9223372036854775807), {}),
    ("aten.slice.Tensor", (X, -1, -3, -1, 2), {}),
    ("aten.slice.Tensor", (X, 2, 3, 1), {}),
    ("aten.slice.Tensor", (X, 0, None, None, 2), {}),
    ("aten.slice.Tensor", (X, 2, -100, 100), {}),
    ("aten.slice_scatter.default", (X, -X[:, 1:], 1, 1), {}),
    ("aten.slice_scatter.default", (X, -X[..., 1::2], -1, 1, None, 2), {}),
    ("aten.slice_scatter.default", (X, -X[..., :3:2], 2, 0, 3, 2), {}),
    ("aten.slice_scatter.default", (X, -X, 0), {}),
    ("aten.slice_scatter.default", (X, X[:0], 0, 2, 1), {}),
    ("aten.select.int", (X, 1, -1), {}),
    ("aten.select.int", (M[0], 0, 2), {}),
    ("aten.select_scatter.default", (X, -X[:, 1], 1, -2), {}),
    ("aten.split_with_sizes.default", (X, [1, 0, 3], -1), {}),
    ("aten.split.Tensor", (X, 3, 2), {}),
    ("aten.split.Tensor", (E, 3), {}),
    ("aten.unbind.int", (X, 1), {}),
    ("aten.diagonal.default", (M,), {}),
    ("aten.diagonal.default", (M, 2), {}),
    ("aten.diagonal.default", (M, -1), {}),
    ("aten.diagonal.default", (M, 4), {}),
    ("aten.diagonal.default", (X, 1, 0, -1), {}),
    ("aten.diagonal.default", (X, 0, 2, 1), {}),
    ("aten.diagonal_scatter.default", (M, torch.tensor([90, 91, 92])), {}),
    ("aten.diagonal_scatter.default", (M, torch.tensor([90, 91]), 2), {}),
    ("aten.diagonal_scatter.default", (M, torch.tensor([90, 91]), -1), {}),
    ("aten.diagonal_scatter.default", (X, torch.full((3, 2), -1.0), 1, 0, 2), {}),
    ("aten.diagonal_scatter.default", (X, torch.full((4, 1), -1.0), -1, 0, 1), {}),
    ("aten.unfold.default", (X, 2, 2, 1), {}),
    ("aten.unfold.default", (X, 1, 3, 2), {}),
    ("aten.unfold.default", (S, 0, 1, 1), {}),
    ("aten.as_strided.default", (X, [2, 5], [3, 2], 4), {}),
    ("aten.as_strided.default", (X, [2, 3], [0, 1]), {}),
    ("aten.as_strided.default", (X, [], [], 5), {}),
    ("aten.as_strided_scatter.default", (X, torch.full((2, 3), -1.0), [2, 3], [12, 2], 1), {}),
]


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_moves_data(name, args, kwargs):
    check(name, *args, exact=True, **kwargs)


def test_as_strided_needs_row_major_inputs():
    with pytest.raises(NotLowerable, match="row-major"):
        lower("aten.as_strided.default", X, [2], [1], input_order=MemoryOrder.PART)


def test_narrow_copy():
    check("aten.narrow_copy.default", X, -1, 1, 2)
    check("aten.narrow_copy.default", X, 0, -1, 1)
    check("aten.narrow_copy.default", X, 1, 0, 0)


def test_what_is_put_into_a_strided_view_may_lie_in_any_order():
    """Gradients of strided views and of what is put into them."""

    def scattered(x, y):
        return torch.as_strided_scatter(x * 2, y.t(), (2, 2), (1, 2), 1) + 1

    def written(x, y):
        x = x * 2
        x.as_strided((2, 2), (3, 1)).add_(y)
        return x + 1

    x = torch.randn(4, 4, requires_grad=True)
    y = torch.randn(2, 2, requires_grad=True)
    for function in (scattered, written):
        results = []
        for run in (compiled(function), function):
            found = run(x, y)
            results.append((found, *torch.autograd.grad(found.square().sum(), (x, y))))
        assert_same(results[0], results[1])


def test_zeros_for_tangents():
    x, y = torch.randn(2, 3), torch.randn(4)
    name = "aten._new_zeros_with_same_feature_meta.default"
    check(name, x, y, exact=True)
    check(name, x, y, self_num_batch_dims=1, exact=True)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("mixed", [False, True])
def test_what_lies_across_is_joined_as_it_lies(dim: int, mixed: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = x.permute(2, 0, 1).exp(), y if mixed else y.permute(2, 0, 1)
        return torch.cat([*parts, parts[0]], dim)

    x = torch.randn(3, 4, 2)
    y = torch.randn(2, 3, 4) if mixed else x
    assert_same(compiled(function)(x, y), function(x, y))


def test_a_join_of_what_lies_across_is_turned_once():
    shape = TensorType((3, 4, 2), dtypes.of("float32"))
    b = Builder([shape, shape])
    parts = [b.transpose(x, (2, 0, 1)) for x in b.parameters]
    joined = TensorType((4, 3, 4), shape.dtype)
    concatenate = find_lowering("aten.cat.default")
    value = concatenate(Context(b, [joined]), parts, 0)
    assert value.type == joined
    assert memory_order(value) == (1, 2, 0)
