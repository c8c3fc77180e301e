"""Defects of public plugins: what gives wrong results in silence, or ends the process.

A flag here is a default of every compilation on a client whose plugin accepts it; the caller's own
flags come after it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pjrt_bridge.runtime.compile.options import Override

SAFE_FLAGS: Mapping[str, Mapping[str, Override]] = {
    # XLA's CPU compiler hands large matrix products to XNNPACK, which packs the right-hand side
    # once and keeps it for as long as that argument has the same address: a weight that was
    # updated in place, or another array that took its memory, is multiplied with its old values.
    # Eigen takes over without XNNPACK, at the same speed (seen with xla-cpu-pjrt 0.0.1).
    # Its fast minimum and maximum drop a NaN that is on the right-hand side, which StableHLO keeps.
    "cpu": {"xla_cpu_use_xnnpack": False, "xla_cpu_enable_fast_min_max": False},
}
"""Compiler flags by platform name."""

_NOT_WRITTEN: Mapping[str, str] = {
    # XLA's CPU plugin takes its calls of oneDNN for calls of another kind when it writes a program,
    # and ends the process with std::bad_alloc (seen with xla-cpu-pjrt 0.0.1).
    "cpu": "__onednn$",
}
"""By platform name how the targets of custom calls start with which no program is serialized."""


def unserializable(platform: str, custom_calls: Collection[str]) -> str | None:
    """The first target of custom calls that a plugin dies of when it serializes, or None."""
    prefix = _NOT_WRITTEN.get(platform)
    if prefix is None:
        return None
    return next((name for name in sorted(custom_calls) if name.startswith(prefix)), None)
