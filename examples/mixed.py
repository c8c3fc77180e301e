"""Programs that a plugin runs in part; `pjrt-bridge explain examples/mixed.py:detect` tells which.

Each function makes its own inputs, so that it can be called as it is.
"""

import torch
from torch import nn


@torch.library.custom_op("examples::quantile_clip", mutates_args=())
def quantile_clip(x: torch.Tensor, q: float) -> torch.Tensor:
    """Clip each row at its own quantile: an operator that no plugin knows."""
    return torch.minimum(x, torch.quantile(x, q, dim=-1, keepdim=True))


@quantile_clip.register_fake
def _(x: torch.Tensor, q: float) -> torch.Tensor:
    return torch.empty_like(x)


class Head(nn.Module):
    """Scores boxes and keeps the good ones: how many, only the data says."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64))
        self.score = nn.Linear(64, 1)
        self.refine = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))

    def forward(self, boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Refined boxes and their scores, for those with a positive score."""
        features = self.features(boxes)
        scores = self.score(features).squeeze(-1)
        kept = torch.nonzero(scores > 0).squeeze(-1)
        return self.refine(features[kept]), scores[kept].sigmoid()


torch.manual_seed(0)
_HEAD = Head().eval()


def detect() -> tuple[torch.Tensor, torch.Tensor]:
    """A program whose sizes depend on data."""
    with torch.no_grad():
        return _HEAD(torch.randn(256, 16))


def clipped(x: torch.Tensor) -> torch.Tensor:
    """A program with an operator of the user's own in the middle."""
    hidden = torch.tanh(x @ x.T)
    return torch.softmax(quantile_clip(hidden, 0.9) * 2, dim=-1)
