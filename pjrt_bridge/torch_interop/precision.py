"""How exact torch's settings want products and convolutions of float32.

`torch.get_float32_matmul_precision()` says it: `"highest"`, the default, is float32; `"high"`
allows TF32 or three products of bfloat16, and `"medium"` bfloat16. torch refuses to answer where
its newer settings (`torch.backends.*.fp32_precision`) contradict that; then the one of the host's
products holds, as these are what tensors on the host and on device `pjrt` would be computed by.
CUDA has settings of its own for tensors that are on it.
"""

from __future__ import annotations

from typing import Any

import torch

from pjrt_bridge.stablehlo.precision import ORDER, Precision, Precisions

NAME = "torch.get_float32_matmul_precision()"
"""The setting of `settings`, for people."""

NAME_OF_CUDA = "torch.backends.cuda.matmul.fp32_precision, or that of torch.backends.cudnn.conv,"
"""Those of `settings_of_cuda`."""

_BACKENDS: Any = torch.backends
"""Its modules have attributes that type checkers do not see."""

_ALL: dict[tuple[Precision, Precision], Precisions] = {
    (product, convolution): Precisions(product, convolution)
    for product in ORDER
    for convolution in ORDER
}
"""One object for each setting, as guards and the keys of programs compare them in each call."""

_BY_NAME = {
    "highest": _ALL["HIGHEST", "HIGHEST"],
    "high": _ALL["HIGH", "HIGH"],
    "medium": _ALL["DEFAULT", "DEFAULT"],
}
_BY_TYPE: dict[str, Precision] = {"tf32": "HIGH", "bf16": "DEFAULT"}
"""By what `fp32_precision` allows; `ieee` and `none` are float32."""


def settings() -> Precisions:
    """The precisions of graphs over tensors on the host and on device `pjrt`.

    torch has no setting for convolutions on such devices: they follow that of products.
    """
    try:
        return _BY_NAME[torch.get_float32_matmul_precision()]
    except RuntimeError:
        found = _of(_BACKENDS.mkldnn.matmul.fp32_precision)
        return _ALL[found, found]


def settings_of_cuda() -> Precisions:
    """The precisions of graphs over tensors on CUDA.

    `torch.backends.cuda.matmul` and `torch.backends.cudnn.conv` state them; older settings, such as
    `torch.backends.cudnn.allow_tf32`, change what these say. Convolutions may take TF32 by default.
    """
    product = _of(_BACKENDS.cuda.matmul.fp32_precision)
    return _ALL[product, _of(_BACKENDS.cudnn.conv.fp32_precision)]


def _of(allowed: str) -> Precision:
    return _BY_TYPE.get(allowed, "HIGHEST")
