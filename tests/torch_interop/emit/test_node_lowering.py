"""Single nodes as StableHLO."""

from __future__ import annotations

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs


@pytest.mark.usefixtures("fresh")
def test_numbers_in_the_places_of_tensors_are_tensors_without_dimensions() -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        # Autograd conjugates the number, in a node that takes no tensor.
        return (x * (1 + 2j) * x).real.sum()

    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    (expected,) = torch.autograd.grad(turned(x), x)
    compiled = torch.compile(turned, backend="pjrt", options={"fallback": "error"})
    (found,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(found, expected)
    assert [len(graph.segments) for graph in compiled_graphs()] == [1, 1]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_determinant_of_a_matrix_by_columns(dynamic: bool) -> None:
    """As orthogonal weights are that `torch.linalg.qr` made; derivatives read its factors."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.slogdet(x)[1] + torch.linalg.det(x[1:, 1:])

    compiled = torch.compile(
        function, backend="pjrt", dynamic=dynamic, options={"fallback": "error"}
    )
    for size in (4, 5):
        x = torch.linalg.qr(torch.randn(size, size)).Q.requires_grad_()
        assert not x.is_contiguous()
        expected = function(x)
        found = compiled(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(item, x)[0] for item in (found, expected)))
