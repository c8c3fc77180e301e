"""What tests of the CPU plugin's kernels share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pjrt_bridge


def emitted(function: Callable[..., Any], *args: torch.Tensor) -> str:
    """The text of the programs that a function is compiled to."""
    texts: list[str] = []
    client = pjrt_bridge.client("cpu")
    compile = type(client).compile

    def noting(self: Any, program: Any, *rest: Any, **options: Any) -> Any:
        if program.name != "try_out":
            texts.append(program.text)
        return compile(self, program, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(client), "compile", noting)
        torch.compile(function, backend="pjrt")(*args)
    return "\n".join(texts)
