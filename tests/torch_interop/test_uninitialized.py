"""Memory that nothing was written into, with torch's setting that fills it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

DTYPES = [torch.float32, torch.bfloat16, torch.complex64, torch.int16, torch.uint8, torch.bool]


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """The setting, and back."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def made(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    like = torch.ones(2, 3, device=device, dtype=dtype)
    return [
        torch.empty(3, device=device, dtype=dtype),
        torch.empty_strided((2, 3), (1, 2), device=device, dtype=dtype),
        torch.empty_permuted((2, 3), (1, 0), device=device, dtype=dtype),
        torch.empty_like(like),
        like.new_empty(4),
        like.new_empty_strided((2,), (3,)),
        torch.zeros_like(like),
    ]


def compare(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, equal_nan=True)


@pytest.mark.usefixtures("pjrt_device")
@pytest.mark.parametrize("mode", ["async", "fused"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_on_the_device(dtype: torch.dtype, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    compare(made("pjrt", dtype), made("cpu", dtype))


@pytest.mark.usefixtures("pjrt_device")
def test_what_is_added_to_a_storage() -> None:
    found, expected = (torch.zeros(2, device=name).resize_(2, 2) for name in ("pjrt", "cpu"))
    compare([found], [expected])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_in_compiled_code(dtype: torch.dtype) -> None:
    compiled = torch.compile(made, backend="pjrt", fullgraph=True)
    compare(compiled("cpu", dtype), made("cpu", dtype))


@pytest.mark.usefixtures("pjrt_device")
def test_it_can_be_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    assert torch.empty(3, device="pjrt").tolist() == [0.0] * 3
