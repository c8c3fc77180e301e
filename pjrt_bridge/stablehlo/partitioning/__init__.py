"""Dividing programs over the devices of a mesh, by Shardy."""
