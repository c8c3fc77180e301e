"""Sparse tensors on the device: their parts are resident, PyTorch computes with them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pjrt_bridge.errors import DeviceError

pytestmark = pytest.mark.filterwarnings(
    "ignore::pjrt_bridge.errors.HostFallbackWarning", "ignore:Sparse:UserWarning"
)

LAYOUTS: list[tuple[torch.layout, dict[str, Any]]] = [
    (torch.sparse_coo, {}),
    (torch.sparse_csr, {}),
    (torch.sparse_csc, {}),
    (torch.sparse_bsr, {"blocksize": (2, 1)}),
    (torch.sparse_bsc, {"blocksize": (2, 1)}),
]


@pytest.fixture(params=["async", "fused"], autouse=True)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", request.param)


def dense() -> torch.Tensor:
    return torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, -3.0]])


def assert_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.device.type == "pjrt"
    assert found.layout == expected.layout
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize(("layout", "options"), LAYOUTS, ids=str)
def test_made_copied_and_back(layout: torch.layout, options: dict[str, Any]) -> None:
    expected = dense().to_sparse(layout=layout, **options)
    here = dense().to("pjrt").to_sparse(layout=layout, **options)
    assert_alike(here, expected)
    assert_alike(expected.to("pjrt"), expected)
    assert_alike(here.clone(), expected)
    assert_alike(here.to(torch.float64), expected.to(torch.float64))
    assert torch.equal(here.to_dense().cpu(), dense())
    assert "device='pjrt:0'" in str(here)
    target = torch.zeros(2, 3).to_sparse(layout=layout, **options).to("pjrt")
    if layout is torch.sparse_coo:
        assert_alike(target.copy_(expected), expected)


OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "product": lambda s, d: s @ d.T,
    "sparse.mm": lambda s, d: torch.sparse.mm(s, d.T),
    "sum": lambda s, d: torch.sparse.sum(s, 0),
    "add": lambda s, d: s + s * 2,
    "add to dense": lambda s, d: d.clone().add_(s, alpha=0.5),
    "in place": lambda s, d: s.clone().mul_(3),
    "neg": lambda s, d: -s,
    "transpose": lambda s, d: s.t(),
    "softmax": lambda s, d: torch.sparse.softmax(s, 1),
    "coalesce": lambda s, d: torch.cat([s, s]).coalesce(),
    "mask": lambda s, d: d.sparse_mask(s.coalesce()),
    "zero": lambda s, d: s.clone().zero_(),
    "select": lambda s, d: s[1],
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operators(name: str) -> None:
    found, expected = (
        OPERATIONS[name](dense().to(device).to_sparse(), dense().to(device))
        for device in ("pjrt", "cpu")
    )
    assert_alike(found, expected)


@pytest.mark.parametrize("name", ["product", "sum", "add to dense", "in place", "coalesce"])
def test_operators_where_the_caller_is_compiled(name: str) -> None:
    compiled = torch.compile(OPERATIONS[name], backend="pjrt")
    found = compiled(dense().to("pjrt").to_sparse(), dense().to("pjrt"))
    assert_alike(found, OPERATIONS[name](dense().to_sparse(), dense()))


def test_saving() -> None:
    file = io.BytesIO()
    torch.save(dense().to("pjrt").to_sparse(), file)
    file.seek(0)
    assert_alike(torch.load(file), dense().to_sparse())


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"same device.*sparse_coo on cpu"):
        torch.sparse.mm(dense().to_sparse(), torch.ones(3, 2, device="pjrt"))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
@pytest.mark.parametrize("bag", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_sparse_gradients_train(
    optimizer: Callable[..., torch.optim.Optimizer], bag: bool, compiled: bool
) -> None:
    def losses(device: str) -> list[float]:
        torch.manual_seed(0)
        layer = nn.EmbeddingBag(6, 3, sparse=True) if bag else nn.Embedding(6, 3, sparse=True)
        layer.to(device)
        made = optimizer(layer.parameters(), lr=0.1)
        forward = torch.compile(layer, backend="pjrt") if compiled else layer
        found = []
        for _ in range(3):
            positions = torch.tensor([[1, 2], [2, 5]], device=device)
            loss = forward(positions).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            assert layer.weight.grad is not None
            assert layer.weight.grad.is_sparse
            made.step()
            made.zero_grad()
            found.append(loss.item())
        return found

    assert losses("pjrt") == pytest.approx(losses("cpu"))
