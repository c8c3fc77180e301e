"""A small module of torch for other frameworks to call, its arguments, and what it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

RNG = np.random.default_rng(0)


def mlp() -> torch.nn.Module:
    """Takes rows of 8, gives rows of 4."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.GELU(), torch.nn.Linear(6, 4))


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    """Normally distributed numbers in float32."""
    return RNG.normal(size=shape).astype(np.float32)


def expected_of(module: torch.nn.Module, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What torch gives."""
    found: np.ndarray[Any, Any] = module(torch.tensor(x)).detach().numpy()
    return found
