"""Kernels of torch's operators on resident tensors."""
