"""Sizes padded to the next of a few: which can be, by what operators do with rows, and doing it."""

from pjrt_bridge.torch_interop.passes.padding.buckets import Padding

__all__ = ["Padding"]
