"""Lowerings: PyTorch's operators as mychip computes them, asked before the portable ones."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.stablehlo import Value
from pjrt_bridge.torch_interop.lowering.api import Context, Lowering, find_lowering


def gelu(c: Context, x: Value, *, approximate: str = "none") -> Value | Sequence[Value | None]:
    """`torch.nn.functional.gelu`: a kernel of the chip where it has one, else the portable way."""
    if approximate != "tanh" or x.dtype.name != "float32":
        portable = find_lowering("aten.gelu.default")
        assert portable is not None
        return portable(c, x, approximate=approximate)
    (result,) = c.b.custom_call("mychip.gelu_tanh", [x], [c.output])
    return result


LOWERINGS: dict[str, Lowering] = {"aten.gelu.default": gelu}
"""By operator name, as PyTorch prints it (`print(torch.ops.aten.gelu.default)`)."""
