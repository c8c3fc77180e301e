"""Profiles: what the bridge and plugins' own profilers recorded, for TensorBoard and Perfetto."""

from pjrt_bridge.profiling.session import Profile, profile

__all__ = ["Profile", "profile"]
