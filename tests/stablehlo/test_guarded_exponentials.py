"""Exponentials of a NaN that a compiler knows are NaN."""

from __future__ import annotations

import numpy as np
import pytest

from pjrt_bridge import Client, dtypes
from pjrt_bridge.stablehlo.program.program import Program

CHOICES = {
    "a constant": "%y = stablehlo.select %rows, %x, %nan : ROWS, T",
    "the difference of infinities": """
        %a = stablehlo.select %rows, %x, %never : ROWS, T
        %y = stablehlo.subtract %a, %a : T""",
    "moved": """
        %a = stablehlo.select %rows, %x, %nan : ROWS, T
        %b = stablehlo.reshape %a : (T) -> FLAT
        %c = stablehlo.negate %b : FLAT
        %y = stablehlo.reshape %c : (FLAT) -> T""",
}
CONSTANTS = {
    "f32": ("0x7FC00000", "0xFF800000"),
    "bf16": ("0x7FC0", "0xFF80"),
    "f16": ("0x7E00", "0xFC00"),
    "f64": ("0x7FF8000000000000", "0xFFF0000000000000"),
}
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64"}
SEEN = np.array([True, False, True])


@pytest.mark.parametrize("operation", ["exponential", "exponential_minus_one"])
@pytest.mark.parametrize("element", CONSTANTS)
@pytest.mark.parametrize("choice", CHOICES)
def test_nan_stays(client: Client, choice: str, element: str, operation: str) -> None:
    """In rows all of which are one constant, for which compilers make a loop of their own."""
    nan, never = CONSTANTS[element]
    text = f"""
        func.func @main(%x: T, %seen: SEEN) -> T {{
        %nan = stablehlo.constant dense<{nan}> : T
        %never = stablehlo.constant dense<{never}> : T
        %rows = stablehlo.broadcast_in_dim %seen, dims = [0] : (SEEN) -> ROWS
        {CHOICES[choice]}
        %z = stablehlo.{operation} %y : T
        return %z : T }}"""
    types = {"ROWS": "3x16xi1", "SEEN": "3xi1", "FLAT": f"48x{element}", "T": f"3x16x{element}"}
    for name, written in types.items():
        text = text.replace(name, f"tensor<{written}>")
    x = np.linspace(-2, 3, 48).reshape(3, 16).astype(dtypes.of(DTYPES[element]).numpy)
    (found,) = client.compile(Program.parse(text))(x, SEEN)
    wide, given = np.asarray(found).astype(np.float64), x.astype(np.float64)
    power = {"a constant": given, "moved": -given}.get(choice, 0 * given)
    wanted = np.exp(power) - (operation != "exponential")
    wanted[~SEEN] = np.nan
    np.testing.assert_allclose(wide, wanted, rtol=0.02, atol=0.01)
