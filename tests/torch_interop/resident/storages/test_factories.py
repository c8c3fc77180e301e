"""New tensors on the device: sizes and strides that torch refuses are refused alike."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("pjrt_device")

REFUSED = [
    ((2, 3), (1,)),
    ((2, 3), (1, 1, 1)),
    ((2, 3), (-1, 1)),
    ((2,), ()),
    ((-2, 3), (1, 1)),
    ((2, 3), (2**62, 1)),
]


@pytest.mark.parametrize(("size", "stride"), REFUSED)
def test_strides_that_torch_refuses_are_refused_with_its_words(
    size: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    with pytest.raises(RuntimeError) as expected:
        torch.empty_strided(size, stride)
    with pytest.raises(RuntimeError) as found:
        torch.empty_strided(size, stride, device="pjrt")
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]
    with pytest.raises(RuntimeError):
        torch.empty(2, device="pjrt").new_empty_strided(size, stride)


@pytest.mark.parametrize(("size", "stride"), [((1, 3), (-1, 1)), ((0, 3), (-1, 1)), ((2,), (0,))])
def test_strides_of_no_steps_may_be_any(size: tuple[int, ...], stride: tuple[int, ...]) -> None:
    found = torch.empty_strided(size, stride, device="pjrt")
    assert found.stride() == torch.empty_strided(size, stride).stride()
    assert found.fill_(2).cpu().eq(2).all()
