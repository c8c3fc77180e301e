"""Attention of any size is joined, while this lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from pjrt_bridge_cpu.aten import attention as attention_module
from pjrt_bridge_cpu.aten.attention import AtenAttention


@contextmanager
def joined(*, by_kernel: bool = False) -> Iterator[list[bool]]:
    """All attention is joined that can be; gives an item for each that is emitted.

    Args:
        by_kernel: PyTorch's kernel computes it, however small it is.
    """
    emitted: list[bool] = []
    own = AtenAttention.attention

    def attention(self: Any, *args: Any) -> Any:
        emitted.append(True)
        return own(self, *args)

    def attends(self: Any, dtype: Any, batches: int, queries: int, keys: int, **_: bool) -> bool:
        return batches * queries * keys > 0

    least = 1 if by_kernel else attention_module.LEAST
    with (
        mock.patch.multiple(AtenAttention, attends=attends, attention=attention),
        mock.patch.object(attention_module, "LEAST", least),
    ):
        torch.compiler.reset()
        yield emitted
    torch.compiler.reset()
