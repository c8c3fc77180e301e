"""Padding of symbolic sizes to the next bucket, and the analysis of which can be padded."""

from pjrt_bridge.torch_interop.passes.padding.buckets import Padding

__all__ = ["Padding"]
