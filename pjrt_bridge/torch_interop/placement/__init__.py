"""Placement: which nodes run on the device and which in PyTorch, and the parts of the graph."""
