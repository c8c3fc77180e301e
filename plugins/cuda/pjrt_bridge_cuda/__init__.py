"""The XLA CUDA plugin for pjrt-bridge: its library, its options, and GPUs to compile for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import OptionError, PluginNotFound
from pjrt_bridge.registry import (
    PlatformSpec,
    PluginSpec,
    TopologySpec,
    hookimpl,
    wheel_library,
)
from pjrt_bridge_cuda.gpus import GPUS, Gpu, check_description
from pjrt_bridge_cuda.presence import no_gpu
from pjrt_bridge_cuda.stream_events import CudaEvents

if TYPE_CHECKING:
    from pjrt_bridge.runtime import Client
    from pjrt_bridge.torch_interop.lowering.api import Kernels, Lowering

__all__ = ["GPUS", "Gpu"]

WHEELS = ("jax-cuda13-pjrt", "jax-cuda12-pjrt")
"""Wheels that bring the library, the preferred one first."""

_TARGET = re.compile(r"([a-z0-9-]+?)(?::(\d{1,5}))?")
_ONE = "1x1x1"


_AHEAD = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
"""Without a device the compiler names algorithms of convolutions that cuDNN does not have, and
computes products in tiles of 16 by 8. With these flags cuDNN and cuBLAS choose, by their rules,
when a program runs."""

_DLPACK_CUDA = 2
"""kDLCUDA of dlpack.h."""

_EVENTS = CudaEvents()


@hookimpl
def pjrt_bridge_platforms() -> PlatformSpec:
    """What XLA's CUDA plugin reads, what ends its process, and that frameworks use its memory."""
    return PlatformSpec(
        "cuda",
        # Else the compiler takes numbers that were rounded to bfloat16 or half for those before.
        compiler_flags={"xla_allow_excess_precision": False},
        dlpack_device_type=_DLPACK_CUDA,
        stream_events=_EVENTS,
        option_types={
            "enable_mock_nccl": bool,
            "mock_gpu_topology": str,
            "use_tfrt_gpu_client": bool,
        },
        # Seen with PJRT API 0.115. Conversions of these types to others end in a clean error.
        fatal_constants=("float6_e2m3fn", "float6_e3m2fn"),
        ahead_flags=_AHEAD,
    )


@hookimpl
def pjrt_bridge_plugins() -> PluginSpec:
    """The plugin `cuda`, which takes device memory as it needs it.

    Raises:
        PluginNotFound: no wheel that holds the library is installed.
    """
    return PluginSpec(
        name="cuda",
        library=_library(),
        # By default a client takes three quarters of the GPU's memory, which PyTorch would miss.
        options={"preallocate": False},
        environment={"TF_CPP_MIN_LOG_LEVEL": "1"},
        priority=100,
        description="XLA on NVIDIA GPUs",
        no_device=no_gpu(),
        spans_processes=True,
        divides_machines=True,
    )


def _library() -> Path:
    for wheel in WHEELS:
        try:
            return wheel_library(wheel, "xla_cuda_plugin.so")
        except PluginNotFound:
            continue
    raise PluginNotFound(
        "no wheel with the CUDA plugin is installed: pip install 'pjrt-bridge-cuda[cuda13]'"
    )


@hookimpl
def pjrt_bridge_kernels(client: Client) -> Kernels | None:
    """Attention by cuDNN, where the GPUs have it."""
    if client.platform_name != "cuda":
        return None
    from pjrt_bridge_cuda.kernels import CudaKernels, can_fuse_attention

    return CudaKernels(client) if can_fuse_attention(client) else None


@hookimpl
def pjrt_bridge_lowerings(client: Client) -> Mapping[str, Lowering] | None:
    """The gradients of attention by cuDNN, where the GPUs have it."""
    if client.platform_name != "cuda":
        return None
    from pjrt_bridge_cuda.kernels import can_fuse_attention
    from pjrt_bridge_cuda.lowerings import lowerings

    return lowerings(client) if can_fuse_attention(client) else None


@hookimpl
def pjrt_bridge_topology(
    plugin: str | None, target: str, options: Mapping[str, NamedValue]
) -> TopologySpec | None:
    """A GPU by name (`h100`), several of them in one machine (`h100:8`), or one of the user's own.

    Raises:
        OptionError: the plugin is `cuda`, and there is no such GPU in the table; or a description
            that the compiler would not survive.
    """
    if plugin not in (None, "cuda"):
        return None
    described = options.get("target_config")
    if isinstance(described, str):
        check_description(described)
        return TopologySpec("cuda", target or "described", {"topology": _ONE})
    found = _TARGET.fullmatch(target.lower())
    gpu = GPUS.get(found[1]) if found else None
    if found is None or gpu is None or found[2] == "0":
        if plugin is None:
            return None
        raise OptionError(
            f"plugin 'cuda' has no topology {target!r}; it knows {', '.join(GPUS)}, each with a "
            "number of GPUs after a colon if wanted ('h100:8'), or take a target_config"
        )
    count = int(found[2] or 1)
    shape = f"1x1x{count}"
    options = {"target_config": gpu.target_config(), "topology": shape}
    return TopologySpec("cuda", target, options, gpu.figures(), count)
