"""What tests of the CPU plugin's kernels share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pjrt_bridge


def emitted(function: Callable[..., Any], *args: torch.Tensor) -> str:
    """The text of the programs that a function is compiled to."""
    return written_by(lambda: torch.compile(function, backend="pjrt")(*args))


def written_by(call: Callable[[], Any]) -> str:
    """The text of the programs that are compiled while something is called."""
    texts: list[str] = []
    client = pjrt_bridge.client("cpu")
    compile = type(client).compile

    def noting(self: Any, program: Any, *rest: Any, **options: Any) -> Any:
        if program.name != "try_out":
            texts.append(program.text)
        return compile(self, program, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(client), "compile", noting)
        call()
    return "\n".join(texts)


def last_places(found: Any, exact: Any) -> Any:
    """How far results are from float64's, in units of the last place of a normal float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        unit = np.maximum(np.spacing(np.abs(exact).astype(np.float32)), np.finfo(np.float32).tiny)
        return np.abs(found.astype(np.float64) - exact) / unit


def drawn_floats(seed: int) -> Any:
    """Normal numbers of every exponent, and as many that models have."""
    rng = np.random.default_rng(seed)
    bits = (
        rng.integers(1 << 23, 255 << 23, 4096, np.uint32)
        | rng.integers(0, 2, 4096, np.uint32) << 31
    )
    return np.concatenate([bits.view(np.float32), rng.normal(0, 30, 4096).astype(np.float32)])
