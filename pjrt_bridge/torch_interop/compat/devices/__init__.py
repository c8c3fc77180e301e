"""Torch's devices: the one that others may register, and the memory of tensors."""
