"""The probe's process, with calls that are wrong in one way: `python -m` with library and kind.

Convolutions of bfloat16 have dimensions that do not exist, those of float32 do not return, products
are one too large.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from pjrt_bridge.stablehlo.builder import Builder, Value
from pjrt_bridge_cpu.onednn import calls, probe


def broken(b: Builder, x: Value, weight: Value, result: Any, **attributes: Any) -> Value:
    if x.dtype == calls.FLOAT32:
        time.sleep(60)
    config = {"dims": 4, "input": {"dims": 4, "data": {"spatial_dims": [7, 8]}}}
    return calls._call(b, "convolution", (x, weight), result, "onednn_conv_config", config)


def wrong(b: Builder, x: Value, y: Value, *args: Any, **kwargs: Any) -> Value:
    total = matmul(b, x, y, *args, **kwargs)
    return b.add(total, b.full(total.shape, 1.0, total.dtype))


matmul = calls.matmul
calls.convolution = broken
calls.matmul = wrong

if __name__ == "__main__":
    probe.main(sys.argv[1:])
