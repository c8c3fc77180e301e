"""Random operators as pure functions of a key, so that a device can draw, and draw the same again.

`operators` defines, for each random operator of ATen, one that takes a 64-bit key before its
arguments: it has no state, so it may be recomputed, moved or run in PyTorch (`host`) and gives the
same numbers. `passes/functionalize_rng.py` puts them in the place of ATen's, with a key for each
that is drawn from torch's generator in every call, and makes arguments of these keys.
"""
