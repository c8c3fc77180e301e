import pytest
import torch
from torch.nn import functional

from tests.torch_interop.lowering.harness import check

torch.manual_seed(0)
CASES = [
    ([2, 3, 9], [2, 3]),
    ([3, 9], [0, 4]),
    ([2, 3, 9], [-2, 3]),
    ([2, 3, 9, 7], [2, 3, 1, 4]),
    ([3, 9, 7], [0, 0, 3, 1]),
    ([2, 3, 9, 7], [-2, 3, 1, -1]),
    ([2, 3, 9, 7], [6, 6, 8, 8]),
    ([1, 2, 5, 6, 7], [1, 2, 3, 4, 2, 1]),
]


@pytest.mark.parametrize(("shape", "padding"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int64])
@pytest.mark.parametrize("kind", ["reflection", "replication"])
def test_padding_and_its_gradient(kind, shape, padding, dtype):
    op = f"aten.{kind}_pad{len(padding) // 2}d"
    x = torch.randint(0, 99, shape).to(dtype)
    if kind == "replication" or dtype is not torch.int64:
        check(f"{op}.default", x, padding)
    if dtype is not torch.int64:
        mode = {"reflection": "reflect", "replication": "replicate"}[kind]
        grad = torch.randn_like(functional.pad(x, padding, mode=mode))
        check(f"{op}_backward.default", grad, x, padding)


def test_half_precision_is_summed_in_float32():
    x = torch.zeros(1, 1, 4, dtype=torch.bfloat16, requires_grad=True)
    compiled = torch.compile(lambda x: functional.pad(x, (3, 3), mode="replicate"), backend="pjrt")
    compiled(x).backward(torch.tensor([[[256.0, 1, 1, 1, 0, 0, 2, 1, 1, 256]]]).bfloat16())
    expected = torch.tensor([[[259.0, 0, 0, 260]]]).bfloat16()
    assert x.grad is not None
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("padding", [[1, 2], [-1, 2], [-2, -1], [0, 0], [3, 0]])
def test_gradient_of_replicated_edges(padding):
    x = torch.randn(2, 3, 5)
    grad = torch.randn(2, 3, 5 + sum(padding))
    check("aten.replication_pad1d_backward.default", grad, x, padding)


def test_gradient_of_replicated_edges_in_more_dimensions():
    x = torch.randn(2, 3, 5, 6)
    grad = torch.randn(2, 3, 8, 4)
    check("aten.replication_pad2d_backward.default", grad, x, [-1, -1, 2, 1])
    check("aten.replication_pad2d_backward.default", grad.bfloat16(), x.bfloat16(), [-1, -1, 2, 1])
    x = torch.randn(1, 1, 1, 2)
    grad = torch.randn(1, 4, 4, 4)
    check("aten.replication_pad3d_backward.default", grad, x, [1, 1, 1, 2, 2, 1])
