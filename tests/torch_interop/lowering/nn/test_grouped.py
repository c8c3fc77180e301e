"""Groups of rows by matrices: sizes of groups are data, so one program serves them all."""

import pytest
import torch

from tests.torch_interop.helpers import assert_compiled, assert_same, compiled

moe = pytest.importorskip("transformers.integrations.moe")

pytestmark = pytest.mark.usefixtures("fresh")

ROWS, INPUTS, OUTPUTS = 50, 6, 7
SIZES = [[10, 20, 20], [0, 50, 0], [50, 0, 0], [0, 0, 50], [1, 0, 49], [17, 16, 17]]


def product(x, weight, ends):
    return torch.ops.transformers.grouped_mm_fallback(x, weight, ends)


def ends_of(sizes, dtype=torch.int32):
    return torch.tensor(sizes).cumsum(0).to(dtype)


def test_rows_by_matrices():
    run = compiled(product)
    x, weight = torch.randn(ROWS, INPUTS), torch.randn(3, INPUTS, OUTPUTS)
    for sizes in SIZES:
        assert_same(run(x, weight, ends_of(sizes)), product(x, weight, ends_of(sizes)))
    assert_compiled("inference")


@pytest.mark.parametrize("sizes", [[3, 2], [0, 0]])
def test_rows_behind_the_last_group_give_0(sizes):
    x, weight = torch.randn(ROWS, INPUTS), torch.randn(2, INPUTS, OUTPUTS)
    ends = ends_of(sizes, torch.int64)
    assert_same(compiled(product)(x, weight, ends), product(x, weight, ends))


@pytest.mark.parametrize("sizes", SIZES)
def test_gradients(sizes):
    def step(run):
        torch.manual_seed(1)
        x = torch.randn(ROWS, INPUTS, requires_grad=True)
        weight = torch.randn(3, INPUTS, OUTPUTS, requires_grad=True)
        run(x, weight, ends_of(sizes)).sin().sum().backward()
        return [x.grad, weight.grad]

    assert_same(step(compiled(product)), step(product))


def test_nan_stays_in_its_group():
    x, weight = torch.randn(ROWS, INPUTS), torch.randn(2, INPUTS, OUTPUTS)
    x[20] = torch.nan
    grad = torch.randn(ROWS, OUTPUTS)
    backward = torch.ops.transformers.grouped_mm_fallback_backward
    arguments = (x, weight, ends_of([20, 30]), grad)
    assert_same(compiled(backward)(*arguments), backward(*arguments))


def test_nothing_to_multiply():
    x, weight = torch.randn(0, INPUTS), torch.randn(2, INPUTS, OUTPUTS)
    ends = ends_of([0, 0])
    assert_same(compiled(product)(x, weight, ends), product(x, weight, ends))


@pytest.mark.parametrize("sizes", [[16, 16, 32], [0, 64, 0]])
def test_bfloat16(sizes):
    x = torch.randn(64, 16, dtype=torch.bfloat16)
    weight = torch.randn(3, 16, 32, dtype=torch.bfloat16)
    ends = ends_of(sizes)
    found = compiled(torch._grouped_mm)(x, weight, offs=ends)
    assert_same(found, torch._grouped_mm(x, weight, offs=ends), rtol=2e-2, atol=2e-2)
