"""Compiled graphs over resident tensors."""
