"""Tensors with a padded dimension, and those beside them."""

import torch

from pjrt_bridge.torch_interop.randomness.operators import NAMESPACE
from tests.torch_interop.passes.padding.rows import SIZE

N = SIZE
torch.manual_seed(0)

X = torch.randn(N, 4)
Y = torch.randn(N, 4)
W = torch.randn(4, 3)
CUBE = torch.randn(N, 2, 6)
IMAGE = torch.randn(N, 4, 8, 8)
HEADS = torch.randn(N, 2, 7, 8)
WORDS = torch.tensor([2, 0, 6, 1, 6])
PLACES = torch.tensor([2, 0, 6, 1, 5])
TABLE = torch.randn(7, 3)
KEY = torch.tensor(2**40 + 7)
DRAW = getattr(torch.ops, NAMESPACE)
COLUMNS = torch.tensor([[0, 3], [1, 1], [2, 0], [3, 3], [1, 2]])
