"""Random operators as pure functions of a key, so that a device can draw, and draw the same again.

`operators` defines, for each random operator of ATen, one that takes a 64-bit key before its
arguments. It has no state, so it may be recomputed, moved or run in PyTorch (`host`, over the NumPy
arrays of `arrays`), and gives the same numbers. The pass `passes/functionalize_rng.py` replaces
ATen's operators by these, and draws the keys from torch's generator in every call.
"""
