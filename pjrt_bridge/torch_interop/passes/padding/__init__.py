"""Padding of sizes that change, so that a program serves many, and what can be padded."""

from pjrt_bridge.torch_interop.passes.padding.buckets import CannotPad, GraphPadding, Padded
from pjrt_bridge.torch_interop.passes.padding.positions import OutOfCall

__all__ = ["CannotPad", "GraphPadding", "OutOfCall", "Padded"]
