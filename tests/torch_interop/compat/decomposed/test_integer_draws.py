"""`random_` in graphs and on the device: the limits of each element type."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pjrt_bridge.torch_interop.compat.decomposed.integer_draws import drawn_between
from tests.torch_interop.helpers import compiled

TYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
LIMITS: tuple[tuple[int | None, ...], ...] = ((), (2,), (0, 2), (-100, None), (-3, 9))


def _assert_between(drawn: Tensor, limits: tuple[int | None, ...]) -> None:
    between = drawn_between(drawn.dtype, *limits)
    assert between is not None
    values = drawn.double()
    assert torch.equal(values, values.round())
    least, end = between
    assert least <= values.min() <= values.max() <= end
    # Of the two halves of the range there are numbers in both.
    middle = (least + end) / 2
    assert values.min() < middle <= values.max()


@pytest.fixture(params=["graph", "device"])
def draw(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    if request.param == "graph":
        return compiled(lambda x, *limits: x.clone().random_(*limits))
    request.getfixturevalue("pjrt_device")
    return lambda x, *limits: x.to("pjrt").random_(*limits).cpu()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_integers_of_each_type(draw: Callable[..., Tensor], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for limits in LIMITS:
        if drawn_between(dtype, *limits) is not None:
            _assert_between(draw(torch.zeros(50, dtype=dtype), *limits), limits)
            assert draw(torch.zeros(0, dtype=dtype), *limits).shape == (0,)


@pytest.mark.parametrize("limits", [(300,), (-200, 3), (3, 3)])
def test_limits_that_pytorch_refuses(limits: tuple[int, ...], pjrt_device: None) -> None:
    words = []
    for device in ("cpu", "pjrt"):
        with pytest.raises(RuntimeError) as raised:
            torch.zeros(4, dtype=torch.int8, device=device).random_(*limits)
        words.append(str(raised.value))
    assert words[0] == words[1]


def test_a_data_loader_draws_its_seed_on_the_default_device(pjrt_device: None) -> None:
    with torch.device("pjrt"):
        data = torch.utils.data.TensorDataset(torch.arange(4.0))
        batches = list(torch.utils.data.DataLoader(data, batch_size=2))
    assert [part.tolist() for (part,) in batches] == [[0, 1], [2, 3]]
