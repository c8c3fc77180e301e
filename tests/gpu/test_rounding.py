"""Conversions to half precision and back round on a GPU, although a compiler could drop them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pjrt_bridge.runtime import Client

SIXTHS = np.arange(-300, 300, dtype=np.float32) / 6
HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("wide", ["f32", "f64"])
def test_there_and_back(gpu: Client, half: str, wide: str) -> None:
    wider, narrow = f"tensor<600x{wide}>", f"tensor<600x{half}>"
    source = f"""
    func.func @main(%x: {wider}) -> ({wider}, {wider}) {{
      %0 = stablehlo.convert %x : ({wider}) -> {narrow}
      %1 = stablehlo.convert %0 : ({narrow}) -> {wider}
      %2 = stablehlo.add %1, %x : {wider}
      return %1, %2 : {wider}, {wider}
    }}
    """
    values = SIXTHS.astype(np.float32 if wide == "f32" else np.float64)
    rounded = values.astype(HALVES[half]).astype(values.dtype)
    with gpu.compile(source) as executable:
        found, total = executable(values)
        assert np.array_equal(found.to_numpy(), rounded)
        assert np.array_equal(total.to_numpy(), rounded + values)
