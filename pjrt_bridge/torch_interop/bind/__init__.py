"""Compiled graphs, their segments, and calls of them."""
