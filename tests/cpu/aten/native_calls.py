"""Custom calls of PyTorch's kernels, made by hand."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt_bridge.runtime import Client, Executable
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.aten.calls import Cut, KernelCall, Out, emit
from pjrt_bridge_cpu.aten.operators import MM
from tests.cpu.aten.frames import Caller

X = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)


BY_ROW = Cut(1, {"self": 0}, (0,))


def product(x: Any, y: Any) -> KernelCall:
    return KernelCall(MM, {"self": x, "mat2": y, "out": Out()}, [x.type], cut=BY_ROW)


def multiply(caller: Caller, attributes: dict[str, Any], **changed: Any) -> Any:
    """The product, or the error."""
    result = np.full_like(X, np.nan)
    failed = caller([X, X], [result], {**attributes, **changed})
    return result if failed is None else failed


def compiled(client: Client, call: Callable[..., KernelCall], *types: TensorType) -> Executable:
    builder = Builder(types)
    return client.compile(builder.finish(list(emit(builder, call(*builder.parameters)))))


def in_use() -> int:
    """Bytes that the C library's heap has given out."""

    class Info(ctypes.Structure):
        _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]

    look = ctypes.CDLL(None).mallinfo2
    look.restype = Info
    found = look()
    given: int = found.field7 + found.field4
    return given


def growth(function: Callable[[], object], times: int) -> float:
    """Bytes that each call leaves behind.

    Python, and threads that other tests of the process have left, allocate too: it is the least of
    twenty times, and of fewer where nothing grew. What a call leaks grows each time.
    """
    least = float("inf")
    for _ in range(20):
        gc.collect()
        before = in_use()
        for _ in range(times):
            function()
        gc.collect()
        least = min(least, (in_use() - before) / times)
        if least < 1:
            break
    return least
