import pytest
import torch
from torch import nn

from tests.torch_interop.helpers import assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_lstm_in_inference(layers, bidirectional, bias, batch_first):
    model = nn.LSTM(3, 5, layers, bias=bias, bidirectional=bidirectional, batch_first=batch_first)
    x = torch.randn(4, 2, 3)
    with torch.no_grad():
        assert_same(compiled(model)(x), model(x))


def test_with_a_state():
    model = nn.LSTM(3, 5)
    state = torch.randn(1, 2, 5), torch.randn(1, 2, 5)
    x = torch.randn(4, 2, 3)
    with torch.no_grad():
        assert_same(compiled(model)(x, state), model(x, state))


def test_a_single_step():
    model = nn.LSTM(3, 5, proj_size=0)
    x = torch.randn(1, 1, 3)
    with torch.no_grad():
        assert_same(compiled(model)(x), model(x))


def test_lstm_in_training():
    ours, theirs = nn.LSTM(3, 5, 2), nn.LSTM(3, 5, 2)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 2, 3)
    for model, run in ((ours, compiled(ours)), (theirs, theirs)):
        outputs, (h, s) = run(x)
        (outputs.sum() + h.exp().sum() + s.sin().sum()).backward()
        assert all(p.grad is not None for p in model.parameters())
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_same(one.grad, other.grad)
