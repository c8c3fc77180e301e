"""Programs of operators that PyTorch has no kernels for."""

import pytest
import torch

import pjrt_bridge.torch_interop.backend  # noqa: F401
from pjrt_bridge.torch_interop import custom_op
from pjrt_bridge.torch_interop.foreign import eager

negate = custom_op(
    "pjrt_bridge_tests::negate", lambda b, x: b.negate(x), schema="(Tensor x) -> Tensor"
)


def test_programs_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_KEPT", 2)
    eager.forget()
    for size in (1, 2, 3, 1):
        assert negate(torch.ones(size)).tolist() == [-1.0] * size
    assert len(eager._programs) == 2


def test_what_is_negated_or_conjugated_lazily() -> None:
    x, z = torch.randn(4), torch.randn(4, dtype=torch.complex64)
    for plain, lazy in ((x, torch._neg_view(x)), (z, z.conj())):
        for _ in range(3):
            torch.testing.assert_close(negate(plain), -plain)
        torch.testing.assert_close(negate(lazy), -lazy)


def test_reset_drops_them() -> None:
    torch.compile(lambda x: x + 1, backend="pjrt")(torch.ones(2))
    negate(torch.ones(2))
    assert eager._programs
    torch.compiler.reset()
    assert not eager._programs
    assert negate(torch.ones(2)).tolist() == [-1.0, -1.0]
