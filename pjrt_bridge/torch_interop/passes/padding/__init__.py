"""Padding of sizes that change, so that a program serves many, and the analysis of what can be."""

from pjrt_bridge.torch_interop.passes.padding.buckets import CannotPad, Padded, Padding

__all__ = ["CannotPad", "Padded", "Padding"]
