"""Storages of resident tensors: what they hold, and how elements get there and back."""
