"""Meshes of devices, and the shardings that models ask for."""
