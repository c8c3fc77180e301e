"""NVIDIA GPUs by name, and their descriptions for a compiler that does not see them.

The figures are public: the CUDA C++ programming guide's table of technical specifications for what
follows from a compute capability, NVIDIA's data sheets for the rest. Memory is what `nvidia-smi`
shows. A description is a `stream_executor.GpuTargetConfigProto` (device_description.proto) as text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pjrt_bridge.errors import OptionError
from pjrt_bridge.registry import DeviceFigures

MIB = 1 << 20
KIB = 1 << 10

NEEDED = (
    "threads_per_block_limit",
    "threads_per_warp",
    "shared_memory_per_block",
    "shared_memory_per_core",
    "threads_per_core_limit",
    "core_count",
    "fpus_per_core",
    "block_dim_limit_x",
    "block_dim_limit_y",
    "block_dim_limit_z",
    "registers_per_core_limit",
    "registers_per_block_limit",
    "memory_bandwidth",
    "l2_cache_size",
    "clock_rate_ghz",
    "device_memory_size",
)
"""Fields without which the compiler divides by zero, or takes a GPU for one without memory."""


def check_description(text: str) -> None:
    """Refuse a description that the compiler would not survive, or would misunderstand.

    Raises:
        OptionError: a field is missing or not positive, or warps are not of 32 threads.
    """
    for name in NEEDED:
        found = re.search(rf"\b{name}\s*:\s*([-+.\w]+)", text)
        try:
            value = float(found[1]) if found else 0.0
        except ValueError:
            value = 0.0
        if not 0 < value < 2.0**63 or (name == "threads_per_warp" and value != 32):
            raise OptionError(
                f"target_config, gpu_device_info.{name}: found {found[1] if found else 'nothing'}, "
                f"expected {'32' if name == 'threads_per_warp' else 'a positive number'}"
            )
    if "cuda_compute_capability" not in text:
        raise OptionError("target_config, gpu_device_info: no cuda_compute_capability")


@dataclass(frozen=True)
class Capability:
    """The figures of all GPUs of one compute capability, each for one multiprocessor.

    Attributes:
        major: of the compute capability.
        minor: of the compute capability.
        threads: most threads that are resident.
        shared_kib: shared memory.
        fp32_lanes: single-precision units.
        accelerated: code may use what only this very architecture has ("sm_90a").
    """

    major: int
    minor: int
    threads: int
    shared_kib: int
    fp32_lanes: int
    accelerated: bool = False

    @property
    def block_shared_kib(self) -> int:
        """Most shared memory of one block that asks for it; 1 KiB is reserved from Ampere on."""
        return self.shared_kib - (1 if self.major >= 8 else 0)


VOLTA = Capability(7, 0, 2048, 96, 64)
TURING = Capability(7, 5, 1024, 64, 64)
AMPERE = Capability(8, 0, 2048, 164, 64)
AMPERE_86 = Capability(8, 6, 1536, 100, 128)
ADA = Capability(8, 9, 1536, 100, 128)
HOPPER = Capability(9, 0, 2048, 228, 128, accelerated=True)
BLACKWELL = Capability(10, 0, 2048, 228, 128, accelerated=True)
BLACKWELL_120 = Capability(12, 0, 1536, 100, 128)


@dataclass(frozen=True)
class Gpu:
    """One model of GPU.

    Attributes:
        model: NVIDIA's name of it.
        capability: what its architecture has.
        multiprocessors: how many of them are enabled.
        clock_ghz: boost clock.
        memory_mib: device memory.
        bandwidth_gb: of the device memory, 10^9 bytes a second.
        l2_mib: second-level cache.
        tera: 10^12 operations a second of its units for products, half precision, dense.
        links_gb: 10^9 bytes a second that it gets from other GPUs of the machine.
    """

    model: str
    capability: Capability
    multiprocessors: int
    clock_ghz: float
    memory_mib: int
    bandwidth_gb: int
    l2_mib: int
    tera: float
    links_gb: int

    def figures(self) -> DeviceFigures:
        """The peak figures that bound programs on it."""
        giga = 10**9
        return DeviceFigures(
            self.tera * 10**12,
            self.bandwidth_gb * giga,
            self.links_gb * giga,
            self.memory_mib * MIB,
        )

    def target_config(self) -> str:
        """The description, for the create option `target_config` of a topology."""
        own = self.capability
        accelerated = "ACCELERATED_FEATURES" if own.accelerated else "NONE"
        info = {
            "name": f'"{self.model}"',
            "device_vendor": '"NVIDIA Corporation"',
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 48 * KIB,
            "shared_memory_per_block_optin": own.block_shared_kib * KIB,
            "shared_memory_per_core": own.shared_kib * KIB,
            "threads_per_core_limit": own.threads,
            "core_count": self.multiprocessors,
            "fpus_per_core": own.fp32_lanes,
            "block_dim_limit_x": (1 << 31) - 1,
            "block_dim_limit_y": (1 << 16) - 1,
            "block_dim_limit_z": (1 << 16) - 1,
            "thread_dim_limit_x": 1024,
            "thread_dim_limit_y": 1024,
            "thread_dim_limit_z": 64,
            "registers_per_core_limit": 1 << 16,
            "registers_per_block_limit": 1 << 16,
            "memory_bandwidth": self.bandwidth_gb * 10**9,
            "l2_cache_size": self.l2_mib * MIB,
            "clock_rate_ghz": self.clock_ghz,
            "device_memory_size": self.memory_mib * MIB,
            "device_address_bits": 64,
            "cuda_compute_capability": (
                f"{{ major: {own.major} minor: {own.minor} feature_extension: {accelerated} }}"
            ),
        }
        lines = "".join(f"  {name}: {value}\n" for name, value in info.items())
        return (
            f"gpu_device_info {{\n{lines}}}\n"
            'platform_name: "CUDA"\n'
            f'device_description_str: "{self.model}"\n'
        )


GPUS = {
    "v100": Gpu("Tesla V100-SXM2-16GB", VOLTA, 80, 1.53, 16_384, 900, 6, 125, 150),
    "v100-32gb": Gpu("Tesla V100-SXM2-32GB", VOLTA, 80, 1.53, 32_768, 900, 6, 125, 150),
    "t4": Gpu("Tesla T4", TURING, 40, 1.59, 15_360, 320, 4, 65, 16),
    "a100-40gb": Gpu("NVIDIA A100-SXM4-40GB", AMPERE, 108, 1.41, 40_960, 1_555, 40, 312, 300),
    "a100": Gpu("NVIDIA A100-SXM4-80GB", AMPERE, 108, 1.41, 81_920, 2_039, 40, 312, 300),
    "a10": Gpu("NVIDIA A10", AMPERE_86, 72, 1.695, 23_028, 600, 6, 125, 32),
    "a6000": Gpu("NVIDIA RTX A6000", AMPERE_86, 84, 1.8, 49_140, 768, 6, 155, 32),
    "rtx3090": Gpu("NVIDIA GeForce RTX 3090", AMPERE_86, 82, 1.695, 24_576, 936, 6, 71, 32),
    "l4": Gpu("NVIDIA L4", ADA, 58, 2.04, 23_034, 300, 48, 121, 32),
    "l40s": Gpu("NVIDIA L40S", ADA, 142, 2.52, 46_068, 864, 96, 362, 32),
    "rtx4090": Gpu("NVIDIA GeForce RTX 4090", ADA, 128, 2.52, 24_564, 1_008, 72, 165, 32),
    "h100-pcie": Gpu("NVIDIA H100 PCIe", HOPPER, 114, 1.755, 81_559, 2_039, 50, 756, 64),
    "h100": Gpu("NVIDIA H100 80GB HBM3", HOPPER, 132, 1.98, 81_559, 3_352, 50, 989, 450),
    "h200": Gpu("NVIDIA H200", HOPPER, 132, 1.98, 143_771, 4_800, 50, 989, 450),
    "b200": Gpu("NVIDIA B200", BLACKWELL, 148, 1.965, 183_359, 8_000, 126, 2_250, 900),
    "rtx5090": Gpu(
        "NVIDIA GeForce RTX 5090", BLACKWELL_120, 170, 2.407, 32_607, 1_792, 96, 209, 64
    ),
}
"""GPUs by the name that a topology is asked for with."""
