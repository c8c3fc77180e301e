"""Defects of public plugins that give wrong results in silence, and the flags that avoid them.

A flag here is a default of every compilation on a client whose plugin accepts it; the caller's own
flags come after it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pjrt_bridge.runtime.options import Override

SAFE_FLAGS: Mapping[str, Mapping[str, Override]] = {
    # XLA's CPU compiler hands large matrix products to XNNPACK, which packs the right-hand side
    # once and keeps it for as long as that argument has the same address: a weight that was
    # updated in place, or another array that took its memory, is multiplied with its old values.
    # Eigen takes over without XNNPACK, at the same speed (seen with xla-cpu-pjrt 0.0.1).
    # Its fast minimum and maximum drop a NaN that is on the right-hand side, which StableHLO keeps.
    "cpu": {"xla_cpu_use_xnnpack": False, "xla_cpu_enable_fast_min_max": False},
}
"""Compiler flags by platform name."""
