"""Fake tensors, symbolic sizes and the graphs that hold them."""
