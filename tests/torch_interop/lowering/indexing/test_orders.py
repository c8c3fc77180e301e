"""Reading and writing at positions, where elements lie across in memory."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, TensorType, memory_order
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import find_lowering
from tests.torch_interop.helpers import assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh")

PICKED = torch.tensor([2, 0, -1])
PLACES: dict[str, Sequence[Any]] = {
    "one": [None, None, PICKED],
    "first": [PICKED],
    "grid": [None, None, PICKED[:, None], PICKED[None, :2]],
    "pairs": [None, None, PICKED, PICKED],
    "apart": [None, PICKED[:, None], None, PICKED[None, :2]],
    "turned": [PICKED[:, None], PICKED[None, :2]],
    "all": [PICKED[:, None, None, None], PICKED[:, None, None], PICKED[:, None], PICKED],
    "more dimensions": [None, None, PICKED.view(3, 1, 1)],
}


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 1, 0, 2)], ids=str)
@pytest.mark.parametrize("where", PLACES)
def test_places_in_what_lies_across(where: str, order: tuple[int, ...]) -> None:
    indices = PLACES[where]
    x = torch.randn(3, 4, 5, 6).permute(order).contiguous()
    back = tuple(sorted(range(4), key=order.__getitem__))

    def read(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.index(x.permute(back).exp(), indices).contiguous()

    def written(x: torch.Tensor) -> torch.Tensor:
        values = torch.ops.aten.index(x.permute(back), indices).exp()
        start = torch.zeros(3, 4, 5, 6)
        return torch.ops.aten.index_put(start, indices, values, True).contiguous()

    for function in (read, written):
        assert_same(compiled(function)(x), function(x))


def test_the_order_is_kept() -> None:
    shape = TensorType((2, 5, 6, 3), dtypes.of("float32"))
    places = [TensorType(shape, dtypes.of("int64")) for shape in ((7, 1), (8,))]
    b = Builder([shape, *places])
    x, *indices = b.parameters
    result = TensorType((2, 3, 7, 8), shape.dtype)
    read = find_lowering("aten.index.Tensor")
    assert read is not None
    value = read(Context(b, [result]), b.transpose(x, (0, 3, 1, 2)), [None, None, *indices])
    assert value.type == result
    assert memory_order(value) == (0, 2, 3, 1)
    put = find_lowering("aten.index_put.default")
    assert put is not None
    whole = b.full((2, 3, 5, 6), 0.0, shape.dtype)
    context = Context(b, [TensorType(whole.shape, shape.dtype)])
    assert memory_order(put(context, whole, [None, None, *indices], value, True)) == (0, 2, 3, 1)
